//! Checksums that distinguish sums from garbage.
//!
//! A rank that aborts its NCCL group also ends the collectives of its neighbours: the kernel stops
//! waiting for data and forwards the memory contents (`prims_ll.h`: `readLL` leaves its loop, and
//! `storeLL` marks the line as fresh nevertheless). The neighbour, which has not aborted, gets no
//! error. So a sum on which ranks decide has a checksum: beside each value `v` goes `k·(1 - v)`, so
//! that value and checksum together give the number of ranks. A contribution of one rank alone
//! gives one; leftovers of an earlier sum have another `k`.

/// Relative tolerance. It applies to the sum of magnitudes, because a value that may be negative
/// has a slot for each rank, to which the other ranks add 0. Values and checksums may be summed in
/// different orders over thousands of ranks.
const TOLERANCE: f64 = 1e-11;
const NUM_FACTORS: u64 = 8;

/// Appends the checksum to the values of sum number `turn`. No value is negative, unless all ranks
/// but one add 0 to it.
pub(super) fn append(values: &[f64], turn: u64) -> Vec<f64> {
    let factor = factor(turn);
    let checksum = values.iter().map(|value| factor * (1.0 - value));
    values.iter().copied().chain(checksum).collect()
}

/// Returns the sums of the values, if their checksum confirms contributions of all `world_size`
/// ranks. A sum of finite values that is too large for a number is infinite.
pub(super) fn verified(sums: &[f64], turn: u64, world_size: u32) -> Option<Vec<f64>> {
    let (values, checksum) = sums.split_at(sums.len() / 2);
    let (factor, size) = (factor(turn), f64::from(world_size));
    let is_true = |(value, checksum): (&f64, &f64)| {
        if value.is_finite() {
            let error = (value + checksum / factor - size).abs();
            // A comparison with NaN is false.
            error <= TOLERANCE * value.abs().max(size)
        } else {
            // The sum overflowed. Its checksum is smaller by the factor, so it may be finite, and
            // must be about -MAX or lower after the division.
            *value > 0.0 && checksum / factor <= -f64::MAX * (1.0 - TOLERANCE)
        }
    };
    let all_true = values.iter().zip(checksum).all(is_true);
    all_true.then(|| values.to_vec())
}

/// Powers of two, so that the product is not rounded. Below 1, so that the checksum of the largest
/// number is finite.
fn factor(turn: u64) -> f64 {
    1.0 / (1_u64 << (1 + turn % NUM_FACTORS)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summed(world: &[&[f64]], turn: u64) -> Vec<f64> {
        let parts: Vec<Vec<f64>> = world.iter().map(|values| append(values, turn)).collect();
        (0..parts[0].len())
            .map(|index| parts.iter().map(|part| part[index]).sum())
            .collect()
    }

    #[test]
    fn checksum_confirms_sum_of_all_ranks() {
        let sums = summed(&[&[0.1, 2.0, 0.0], &[0.7, 1e15, 0.0]], 3);
        assert_eq!(
            verified(&sums, 3, 2),
            Some(vec![0.1 + 0.7, 2.0 + 1e15, 0.0])
        );
    }

    #[test]
    fn checksum_confirms_sum_that_overflows() {
        for turn in 0..NUM_FACTORS {
            let sums = summed(&[&[f64::MAX, -f64::MAX], &[f64::MAX / 2.0, 0.0]], turn);
            let found = verified(&sums, turn, 2);
            assert_eq!(found, Some(vec![f64::INFINITY, -f64::MAX]));
            assert_eq!(verified(&[f64::INFINITY, 0.0], turn, 2), None);
        }
    }

    #[test]
    fn checksum_rejects_garbage() {
        let sums = summed(&[&[0.0, 7.0], &[1.0, 7.0]], 9);
        for garbage in [f64::NAN, f64::INFINITY, 3.0] {
            for index in 0..sums.len() {
                let mut spoilt = sums.clone();
                spoilt[index] = garbage;
                assert_eq!(verified(&spoilt, 9, 2), None, "{garbage} at {index}");
            }
            assert_eq!(verified(&vec![garbage; sums.len()], 9, 2), None);
        }
        assert_eq!(verified(&vec![0.0; sums.len()], 9, 2), None);
    }

    #[test]
    fn checksum_rejects_sum_of_some_ranks() {
        let sums = summed(&[&[0.0, 7.0], &[1.0, 7.0]], 9);
        assert!(verified(&sums, 9, 2).is_some());
        assert_eq!(verified(&sums, 9, 3), None);
        // Also if only one of the values is incomplete.
        let mut spoilt = summed(&[&[0.0, 7.0], &[1.0, 7.0], &[0.0, 7.0]], 9);
        spoilt[1] = sums[1];
        spoilt[3] = sums[3];
        assert_eq!(verified(&spoilt, 9, 3), None);
    }

    #[test]
    fn checksum_rejects_leftover_of_earlier_sum() {
        for value in [0.0, 1.0, 5.0] {
            let sums = summed(&[&[value], &[0.0]], 4);
            assert!(verified(&sums, 4, 2).is_some());
            assert_eq!(verified(&sums, 5, 2), None);
        }
    }
}
