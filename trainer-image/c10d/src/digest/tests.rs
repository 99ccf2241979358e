use tch::{Device, Kind, Tensor};

use super::*;

fn number(tensors: &[Tensor]) -> i64 {
    digest(tensors).unwrap().int64_value(&[])
}

#[test]
fn digest_detects_one_bit_of_any_element() {
    for length in [1, 2, 7, 8] {
        for offset in [0, 1] {
            let memory = Tensor::randn([length + offset], (Kind::Float, Device::Cpu));
            let tensor = memory.narrow(0, offset, length);
            let before = number(&[tensor.shallow_clone()]);
            assert_eq!(number(&[tensor.shallow_clone()]), before);
            for place in 0..length {
                // The lowest bit, which no norm of many elements would show.
                let mut word = tensor.narrow(0, place, 1).view_dtype(Kind::Int);
                let _ = word.bitwise_xor_(1);
                assert_ne!(
                    number(&[tensor.shallow_clone()]),
                    before,
                    "{place} of {length}"
                );
                let _ = word.bitwise_xor_(1);
            }
            assert_eq!(number(&[tensor]), before);
        }
    }
}

#[test]
fn digest_does_not_depend_on_memory_layout() {
    let rows = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
    let columns = rows.tr().contiguous().tr();
    let doubles = Tensor::from_slice(&[0.1, f64::NAN]);
    let empty = Tensor::zeros([0], (Kind::Float, Device::Cpu));
    let of = |first: &Tensor| {
        number(&[
            first.shallow_clone(),
            doubles.shallow_clone(),
            empty.shallow_clone(),
        ])
    };
    assert_eq!(of(&rows), of(&columns));
    assert_ne!(of(&rows), number(&[rows.shallow_clone()]));
    assert_eq!(number(&[empty]), 0);
    assert!(digest(&[Tensor::from_slice(&[1_u8])]).is_err());
}
