//! By what a rank knows that a state has come to it as it was sent. Over NCCL a peer that aborts may make a
//! broadcast end with garbage on ranks that have not aborted (see `world/witness.rs`); gone on with, it would be
//! the state of the next generation.

use tch::{Device, Kind, TchError, Tensor};

/// Length of a digest.
pub(super) const DIGEST_BYTES: usize = 8;
/// Odd, so that what is multiplied by it can be told from what is not (Knuth's multiplicative hash).
const FACTOR: i64 = -7_046_029_254_386_353_131;

/// Digest of some tensors and bytes: sums of bit patterns, since it is computed on the device and has to tell
/// accidents, not forgeries.
pub(super) fn digest(tensors: &[Tensor], bytes: &[u8]) -> Result<[u8; DIGEST_BYTES], TchError> {
    let sums: Vec<Tensor> = tensors.iter().map(sum_of_bits).collect::<Result<_, _>>()?;
    let mut values = vec![0_i64; sums.len()];
    if !sums.is_empty() {
        // One copy from the device for all.
        let length = values.len();
        Tensor::f_stack(&sums, 0)?
            .f_to_device(Device::Cpu)?
            .f_copy_data(&mut values, length)?;
    }
    let bytes = bytes.iter().map(|byte| i64::from(*byte));
    let digest = values
        .into_iter()
        .chain(bytes)
        .fold(0_i64, |digest, value| {
            digest.wrapping_mul(FACTOR).wrapping_add(value)
        });
    Ok(digest.to_le_bytes())
}

fn sum_of_bits(tensor: &Tensor) -> Result<Tensor, TchError> {
    let words = match tensor.f_kind()?.elt_size_in_bytes() {
        8 => Kind::Int64,
        4 => Kind::Int,
        2 => Kind::Int16,
        _ => Kind::Uint8,
    };
    tensor.f_detach()?.f_view_dtype(words)?.f_sum(Kind::Int64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_makes_another_digest() {
        let state = || {
            [
                Tensor::from_slice(&[1.0_f32, 2.0]),
                Tensor::from_slice(&[3.0_f32]),
            ]
        };
        let whole = digest(&state(), b"words").unwrap();
        assert_eq!(digest(&state(), b"words").unwrap(), whole);
        assert_ne!(digest(&state(), b"wordz").unwrap(), whole);
        for garbage in [f64::from(f32::NAN), 0.0, 2.000_001] {
            for index in 0..2 {
                let mut spoilt = state();
                let _ = spoilt[index].fill_(garbage);
                assert_ne!(digest(&spoilt, b"words").unwrap(), whole);
            }
        }
        let [one, other] = state();
        assert_ne!(digest(&[other, one], b"words").unwrap(), whole);
        assert!(digest(&[], b"").is_ok());
    }
}
