use tch::{Device, Kind};

use super::*;

fn values(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

/// The agreement of a process that is alone.
fn alone(values: &Tensor, finite: Option<&Tensor>, aside: Option<&Tensor>) -> Result<Agreement> {
    let vote = Vote {
        values,
        finite,
        equal: None,
        aside,
    };
    agree(vote, 3, None)
}

#[test]
fn sums_of_one_process_are_its_values() {
    let agreement = alone(&values(&[0.1, -7.0, 0.0]), None, None).unwrap();
    assert!(agreement.is_there().unwrap());
    let agreed = agreement.wait().unwrap();
    assert_eq!(agreement.peek().unwrap(), Some(agreed.clone()));
    assert_eq!(agreed.sums, [0.1, -7.0, 0.0]);
    assert!(agreed.is_good && agreed.is_right && agreed.aside.is_empty());
    assert_eq!(agreement.found_inf().kind(), Kind::Float);
    assert_eq!(agreement.found_inf().double_value(&[0]), 0.0);
    assert_eq!(
        Vec::<f64>::try_from(agreement.sums()).unwrap(),
        [0.1, -7.0, 0.0]
    );
}

#[test]
fn aside_values_are_returned_and_decide_nothing() {
    let aside = values(&[f64::INFINITY, -2.5]);
    let agreement = alone(&values(&[1.0]), None, Some(&aside)).unwrap();
    let agreed = agreement.wait().unwrap();
    assert_eq!(
        (agreed.sums, agreed.aside),
        (vec![1.0], vec![f64::INFINITY, -2.5])
    );
    assert!(agreed.is_good);
}

#[test]
fn value_that_is_not_finite_raises_the_flag() {
    let norm = |value: f64| Tensor::from(value).to_kind(Kind::Float);
    for (value, norm, is_right, is_good) in [
        (1.0, norm(3.0), true, true),
        (f64::NAN, norm(3.0), false, false),
        (f64::INFINITY, norm(3.0), false, false),
        (1.0, norm(f64::NAN), true, false),
        (1.0, norm(f64::INFINITY), true, false),
    ] {
        let agreement = alone(&values(&[value]), Some(&norm), None).unwrap();
        let flag = f64::from(u8::from(!is_good));
        assert_eq!(agreement.found_inf().double_value(&[0]), flag);
        let agreed = agreement.wait().unwrap();
        let found = (agreed.is_right, agreed.is_good);
        assert_eq!(found, (is_right, is_good), "{value} {norm}");
    }
}

#[test]
fn only_wait_counts_as_a_host_sync() {
    let before = crate::host_syncs();
    let agreement = alone(&values(&[1.0]), None, None).unwrap();
    assert!(agreement.is_there().unwrap());
    // Other tests of this process may wait at the same time.
    let others = crate::host_syncs() - before;
    agreement.wait().unwrap();
    assert!(crate::host_syncs() > before + others);
}

#[test]
fn values_of_another_kind_are_an_error() {
    let single = Tensor::ones([2], (Kind::Float, Device::Cpu));
    assert!(alone(&single, None, None).is_err());
    let table = Tensor::ones([2, 2], (Kind::Double, Device::Cpu));
    assert!(alone(&table, None, None).is_err());
    assert!(alone(&values(&[1.0]), None, Some(&single)).is_err());
}
