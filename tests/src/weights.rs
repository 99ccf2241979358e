//! Compares the weights of two training runs, written as safetensors.

use anyhow::{Context, bail, ensure};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// The largest difference of any weight, as a fraction of the largest weight of its tensor.
///
/// # Errors
/// The files have no weights or weights of different models, or a weight is not finite.
pub fn difference(expected: &[u8], actual: &[u8]) -> anyhow::Result<f32> {
    difference_of(expected, actual, |_| true)
}

/// [`difference`] of the tensors whose name `counts`.
///
/// # Errors
/// The same as those of [`difference`], for all tensors.
pub fn difference_of(
    expected: &[u8],
    actual: &[u8],
    counts: impl Fn(&str) -> bool,
) -> anyhow::Result<f32> {
    let expected = SafeTensors::deserialize(expected)?;
    let actual = SafeTensors::deserialize(actual)?;
    ensure!(!expected.names().is_empty(), "there are no weights");
    ensure!(expected.len() == actual.len(), "the tensors differ");
    let mut most = 0_f64;
    for (name, tensor) in expected.tensors() {
        let theirs = actual.tensor(&name).context(name.clone())?;
        ensure!(
            (tensor.dtype(), tensor.shape()) == (theirs.dtype(), theirs.shape()),
            "{name}: the types or shapes differ"
        );
        let (a, b) = (values(&tensor)?, values(&theirs)?);
        ensure!(
            a.iter().chain(&b).all(|value| value.is_finite()),
            "{name}: a weight is not finite"
        );
        if !counts(&name) {
            continue;
        }
        let scale = greatest(a.iter().copied());
        let furthest = greatest(a.iter().zip(&b).map(|(a, b)| a - b));
        // Two tensors of zeros are equal. Any difference from a tensor of zeros counts as large.
        most = most.max(furthest / scale.max(f64::MIN_POSITIVE));
    }
    #[expect(clippy::cast_possible_truncation, reason = "a few digits are enough")]
    Ok(most as f32)
}

fn greatest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |most, value| most.max(value.abs()))
}

/// All values of a tensor, as f64.
fn values(tensor: &TensorView<'_>) -> anyhow::Result<Vec<f64>> {
    let data = tensor.data();
    match tensor.dtype() {
        Dtype::F32 => {
            let words = data.as_chunks().0.iter();
            Ok(words.map(|it| f32::from_le_bytes(*it).into()).collect())
        }
        Dtype::F64 => {
            let words = data.as_chunks().0.iter();
            Ok(words.map(|it| f64::from_le_bytes(*it)).collect())
        }
        Dtype::I64 => {
            let words = data.as_chunks().0.iter();
            Ok(words.map(|it| i64::from_le_bytes(*it) as f64).collect())
        }
        other => bail!("weights of type {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

    use safetensors::{Dtype, serialize, tensor::TensorView};

    use super::difference;

    fn weights(values: &[f32]) -> Vec<u8> {
        let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![values.len()], &bytes).unwrap();
        serialize([("weight", view)], None).unwrap()
    }

    #[test]
    fn difference_is_relative_to_the_largest_weight() {
        let found = difference(&weights(&[4.0, 1.0]), &weights(&[4.0, 2.0])).unwrap();
        assert!((found - 0.25).abs() < 1e-6, "{found}");
    }

    #[test]
    fn weights_of_64_bits_differ_by_less_than_32_bits_resolve() {
        let of = |values: [f64; 2]| {
            let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            let view = TensorView::new(Dtype::F64, vec![2], &bytes).unwrap();
            serialize([("weight", view)], None).unwrap()
        };
        let found = difference(&of([2.0, 1.0]), &of([2.0, 1.0 + 2e-12])).unwrap();
        assert!((found - 1e-12).abs() < 1e-15, "{found}");
    }

    #[test]
    fn difference_from_zeros_is_never_small() {
        let zeros = weights(&[0.0, 0.0]);
        assert!(difference(&zeros, &zeros).unwrap() == 0.0);
        assert!(difference(&zeros, &weights(&[0.0, 1e-30])).unwrap() > 1.0);
    }

    #[test]
    fn weights_that_are_not_finite_are_never_equal() {
        for value in [f32::NAN, f32::INFINITY] {
            for (left, right) in [(value, value), (value, 2.0), (2.0, value)] {
                let compared = difference(&weights(&[1.0, left]), &weights(&[1.0, right]));
                assert!(compared.is_err(), "{left} beside {right}: {compared:?}");
            }
        }
    }
}
