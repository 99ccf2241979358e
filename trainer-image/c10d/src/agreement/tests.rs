use tch::{Device, Kind};

use super::*;

fn values(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

#[test]
fn alone_the_sums_are_the_values() {
    let agreement = agree(&values(&[0.1, -7.0, 0.0]), None, 3, None).unwrap();
    assert!(agreement.is_there().unwrap());
    let agreed = agreement.wait().unwrap();
    assert_eq!(agreed.sums, [0.1, -7.0, 0.0]);
    assert!(agreed.is_good);
    assert_eq!(agreement.found_inf().kind(), Kind::Float);
    assert_eq!(agreement.found_inf().double_value(&[0]), 0.0);
    assert_eq!(
        Vec::<f64>::try_from(agreement.sums()).unwrap(),
        [0.1, -7.0, 0.0]
    );
}

#[test]
fn what_is_not_finite_raises_the_flag() {
    let norm = |value: f64| Tensor::from(value).to_kind(Kind::Float);
    for (value, norm, is_good) in [
        (1.0, norm(3.0), true),
        (f64::NAN, norm(3.0), false),
        (f64::INFINITY, norm(3.0), false),
        (1.0, norm(f64::NAN), false),
        (1.0, norm(f64::INFINITY), false),
    ] {
        let agreement = agree(&values(&[value]), Some(&norm), 0, None).unwrap();
        let flag = f64::from(u8::from(!is_good));
        assert_eq!(agreement.found_inf().double_value(&[0]), flag);
        assert_eq!(agreement.wait().unwrap().is_good, is_good, "{value} {norm}");
    }
}

#[test]
fn only_the_wait_counts_as_one() {
    let before = crate::host_syncs();
    let agreement = agree(&values(&[1.0]), None, 0, None).unwrap();
    assert!(agreement.is_there().unwrap());
    // Other tests of this process may wait meanwhile.
    let others = crate::host_syncs() - before;
    agreement.wait().unwrap();
    assert!(crate::host_syncs() > before + others);
}

#[test]
fn values_of_another_kind_are_an_error() {
    let single = Tensor::ones([2], (Kind::Float, Device::Cpu));
    assert!(agree(&single, None, 0, None).is_err());
    let table = Tensor::ones([2, 2], (Kind::Double, Device::Cpu));
    assert!(agree(&table, None, 0, None).is_err());
}
