use tch::{Device, Kind};

use super::*;

fn list() -> Vec<Tensor> {
    [&[1.0, 2.0][..], &[-3.0], &[4.0, 0.5, 8.0]]
        .map(|values: &[f32]| Tensor::from_slice(values))
        .into()
}

/// Applies an operation to the list and compares with the same arithmetic on each tensor.
fn assert_is(
    operation: impl Fn(&mut [Tensor], &[Tensor]),
    same: impl Fn(&Tensor, &Tensor) -> Tensor,
) {
    let others: Vec<Tensor> = list().iter().map(|tensor| tensor * 0.5 + 3.0).collect();
    let mut changed: Vec<Tensor> = list().iter().map(Tensor::abs).collect();
    let wanted: Vec<Tensor> = changed
        .iter()
        .zip(&others)
        .map(|(tensor, other)| same(tensor, other))
        .collect();
    operation(&mut changed, &others);
    for (changed, wanted) in changed.iter().zip(&wanted) {
        assert!(
            changed.allclose(wanted, 1e-6, 1e-7, false),
            "{changed} {wanted}"
        );
    }
}

#[test]
fn each_operation_is_that_on_each_tensor() {
    assert_is(|x, _| sqrt_(x).unwrap(), |x, _| x.sqrt());
    assert_is(|x, _| add_scalar_(x, 3.0).unwrap(), |x, _| x + 3.0);
    assert_is(|x, _| mul_scalar_(x, 3.0).unwrap(), |x, _| x * 3.0);
    let divisor = Tensor::from(7_f32);
    assert_is(|x, _| div_tensor_(x, &divisor).unwrap(), |x, _| x / 7.0);
    assert_is(|x, y| add_(x, y, -2.0).unwrap(), |x, y| x - y * 2.0);
    assert_is(|x, y| mul_(x, y).unwrap(), |x, y| x * y);
    assert_is(|x, y| div_(x, y).unwrap(), |x, y| x / y);
    assert_is(|x, y| lerp_(x, y, 0.1).unwrap(), |x, y| x + (y - x) * 0.1);
    assert_is(|x, y| copy_(x, y).unwrap(), |_, y| y.copy());
}

#[test]
fn a_number_for_each_tensor_scales_all_its_elements() {
    let mut changed = list();
    let ratios: Vec<Tensor> = [2_f32, 3.0, 4.0].map(Tensor::from).into();
    mul_(&mut changed, &ratios).unwrap();
    assert_eq!(
        Vec::<f32>::try_from(&changed[2]).unwrap(),
        [16.0, 2.0, 32.0]
    );
    assert_eq!(changed[1].double_value(&[0]), -9.0);
}

#[test]
fn norms_are_those_of_each_tensor_and_of_all() {
    let each = norms(&list(), 2.0).unwrap();
    let found: Vec<f64> = each.iter().map(|norm| norm.double_value(&[])).collect();
    let wanted: Vec<f64> = list().iter().map(|x| x.norm().double_value(&[])).collect();
    assert_eq!(found, wanted);
    let syncs = crate::host_syncs();
    let total = total_norm(&list()).unwrap();
    assert_eq!(crate::host_syncs(), syncs);
    let total = total.double_value(&[]);
    assert!((total - Tensor::cat(&list(), 0).norm().double_value(&[])).abs() < 1e-5);
}

#[test]
fn leaves_that_require_gradients_can_be_changed() {
    let mut weights = [Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true)];
    mul_scalar_(&mut weights, 3.0).unwrap();
    assert!(weights[0].is_leaf());
    assert_eq!(weights[0].double_value(&[1]), 3.0);
}

#[test]
fn lists_of_different_lengths_are_refused() {
    assert!(add_(&mut list(), &list()[..2], 1.0).is_err());
    assert!(mul_(&mut list(), &list()[1..]).is_err());
}
