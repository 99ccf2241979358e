use tch::Tensor;

use super::*;

fn product() -> Kind {
    let ones = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
    ones.matmul(&ones).kind()
}

#[test]
fn matrix_product_is_rounded_only_within_the_guard() {
    assert_eq!(product(), Kind::Float);
    let outer = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
    assert_eq!(product(), Kind::BFloat16);
    let inner = Autocast::enter(Device::Cpu, Kind::Float).unwrap();
    assert_eq!(product(), Kind::Float);
    drop(inner);
    assert_eq!(product(), Kind::BFloat16);
    // Autocast is a state of this thread only.
    assert_eq!(std::thread::spawn(product).join().unwrap(), Kind::Float);
    drop(outer);
    assert_eq!(product(), Kind::Float);
    let half = Autocast::enter(Device::Cpu, Kind::Half).unwrap();
    assert_eq!(product(), Kind::Half);
    drop(half);
    assert!(Autocast::enter(Device::Cpu, Kind::Int64).is_err());
}

#[test]
fn changed_weight_is_cast_again_in_the_next_guard() {
    let mut weight = Tensor::ones([2, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let input = Tensor::ones([1, 2], (Kind::Float, Device::Cpu));
    let mut forward = |factor: f64| {
        let _ = tch::no_grad(|| weight.fill_(factor));
        let guard = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
        let output = input.matmul(&weight).to_kind(Kind::Float);
        drop(guard);
        output.double_value(&[0, 0])
    };
    assert_eq!([forward(1.0), forward(3.0)], [2.0, 6.0]);
}

#[test]
fn gradients_under_autocast_have_the_kind_of_the_weights() {
    let weight = Tensor::ones([2, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let guard = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
    let loss = weight.matmul(&weight).sum(Kind::Float);
    drop(guard);
    crate::backward(&loss).unwrap();
    assert_eq!(weight.grad().kind(), Kind::Float);
    assert_eq!(weight.grad().double_value(&[0, 0]), 4.0);
}

#[test]
fn switches_are_what_was_set() {
    let before = Numerics::current().unwrap();
    for deterministic in [true, false] {
        let wanted = Numerics {
            tf32: deterministic,
            cudnn_benchmark: !deterministic,
            deterministic,
        };
        wanted.apply().unwrap();
        assert_eq!(Numerics::current().unwrap(), wanted);
    }
    before.apply().unwrap();
}
