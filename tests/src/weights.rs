//! Compares weights that two trainings wrote as safetensors.

use anyhow::{Context, ensure};
use safetensors::SafeTensors;

/// The largest difference of any weight, as a fraction of the largest weight of its tensor.
///
/// # Errors
/// They are not weights of one model, or no weights at all.
pub fn difference(expected: &[u8], actual: &[u8]) -> anyhow::Result<f32> {
    let expected = SafeTensors::deserialize(expected)?;
    let actual = SafeTensors::deserialize(actual)?;
    ensure!(!expected.names().is_empty(), "there are no weights");
    let mut most = 0_f32;
    for (name, tensor) in expected.tensors() {
        let theirs = actual.tensor(&name).context(name)?;
        let (a, b) = (floats(tensor.data()), floats(theirs.data()));
        ensure!(a.len() == b.len(), "the shapes differ");
        let scale = a
            .iter()
            .fold(0_f32, |largest, value| largest.max(value.abs()));
        let pairs = a.iter().zip(&b);
        let furthest = pairs.fold(0_f32, |most, (a, b)| most.max((a - b).abs()));
        ensure!(
            b.iter().all(|value| value.is_finite()),
            "a weight is not finite"
        );
        most = most.max(furthest / scale);
    }
    Ok(most)
}

fn floats(data: &[u8]) -> Vec<f32> {
    let words = data.as_chunks::<4>().0.iter();
    words.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
