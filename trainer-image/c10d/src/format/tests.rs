use tch::{Device, Kind};

use super::*;

fn image() -> Tensor {
    Tensor::arange(2 * 3 * 4 * 5, (Kind::Float, Device::Cpu)).view([2, 3, 4, 5])
}

#[test]
fn channels_last_round_trip_keeps_the_tensor() {
    let image = image();
    let last = contiguous(&image, MemoryFormat::ChannelsLast).unwrap();
    assert!(is_channels_last(&last).unwrap() && !is_channels_last(&image).unwrap());
    assert_eq!(last.stride(), [60, 1, 15, 3]);
    assert_eq!(last, image);
    let like = empty_like(&last, MemoryFormat::Preserve).unwrap();
    assert!(is_channels_last(&like).unwrap());
    let back = contiguous(&last, MemoryFormat::Contiguous).unwrap();
    assert_eq!(back.stride(), image.stride());
    assert_eq!(back, image);
    let vector = image.view([-1]);
    assert!(contiguous(&vector, MemoryFormat::ChannelsLast).is_err());
}

#[test]
fn converted_weights_stay_leaves_with_matching_gradients() {
    let mut weights = [
        image().set_requires_grad(true),
        Tensor::ones([3], (Kind::Float, Device::Cpu)).set_requires_grad(true),
    ];
    convert(&mut weights, MemoryFormat::ChannelsLast).unwrap();
    assert!(is_channels_last(&weights[0]).unwrap());
    assert!(
        weights
            .iter()
            .all(|weight| weight.is_leaf() && weight.requires_grad())
    );
    let loss = (&weights[0] * &weights[0]).sum(Kind::Float) * weights[1].sum(Kind::Float);
    crate::backward(&loss).unwrap();
    assert!(is_channels_last(&weights[0].grad()).unwrap());
    assert_eq!(weights[0].grad(), weights[0].detach() * 6.0);
}
