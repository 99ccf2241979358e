//! Sends 64-bit numbers in a bucket of gradients without loss.
//!
//! A bucket holds 32-bit floats. The ranks sum it and divide it by their number. Each rank has its
//! own slots, in which all other ranks write 0, and writes each 64-bit number as four integers
//! below 2^16. Division and multiplication by the number of ranks change such an integer by less
//! than one half, so rounding restores it.

/// Number of slots for one 64-bit number.
pub(super) const SLOTS_PER_NUMBER: usize = 4;
const BITS: u32 = 16;

/// The slots of all ranks, with the numbers of one rank and zeros elsewhere.
pub(super) fn write(numbers: &[f64], rank: u32, world_size: u32) -> Vec<f32> {
    let mut slots = vec![0.0; numbers.len() * SLOTS_PER_NUMBER * world_size as usize];
    let own = slots
        .iter_mut()
        .skip(numbers.len() * SLOTS_PER_NUMBER * rank as usize);
    let parts = numbers.iter().flat_map(|number| {
        let bits = number.to_bits();
        (0..SLOTS_PER_NUMBER).map(move |part| {
            let part = bits >> (BITS * u32::try_from(part).unwrap_or(0)) & u64::from(u16::MAX);
            u16::try_from(part).unwrap_or(0)
        })
    });
    for (slot, part) in own.zip(parts) {
        *slot = f32::from(part);
    }
    slots
}

/// Restores the numbers of each rank from the means of the slots. `None` if a slot holds a value
/// that no rank can have written.
pub(super) fn read(means: &[f32], world_size: u32) -> Option<Vec<Vec<f64>>> {
    let size = world_size as usize;
    let per_rank = means.len() / size.max(1);
    if per_rank == 0 || !per_rank.is_multiple_of(SLOTS_PER_NUMBER) || per_rank * size != means.len()
    {
        return None;
    }
    let number = |parts: &[f32]| {
        let mut bits = 0_u64;
        for (index, mean) in (0_u32..).zip(parts) {
            let part = (f64::from(*mean) * f64::from(world_size)).round();
            if !(0.0..=f64::from(u16::MAX)).contains(&part) {
                return None;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked above"
            )]
            let part = part as u64;
            bits |= part << (BITS * index);
        }
        Some(f64::from_bits(bits))
    };
    let numbers = |slots: &[f32]| slots.chunks_exact(SLOTS_PER_NUMBER).map(number).collect();
    means.chunks_exact(per_rank).map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Averages the slots of all ranks as a Reducer does.
    fn averaged(world: &[Vec<f64>]) -> Vec<f32> {
        let size = u32::try_from(world.len()).unwrap();
        let written: Vec<Vec<f32>> = (0..size)
            .zip(world)
            .map(|(rank, numbers)| write(numbers, rank, size))
            .collect();
        (0..written[0].len())
            .map(|slot| {
                written
                    .iter()
                    .map(|slots| slots[slot] * (1.0 / size as f32))
                    .sum()
            })
            .collect()
    }

    #[test]
    fn numbers_arrive_bit_for_bit_for_any_number_of_ranks() {
        for size in [1, 2, 3, 7, 64] {
            let world: Vec<Vec<f64>> = (0..size)
                .map(|rank| {
                    vec![
                        0.1 * f64::from(rank),
                        -1e300,
                        f64::from(1_u32 << 31),
                        f64::NAN,
                        f64::MIN_POSITIVE / 3.0,
                    ]
                })
                .collect();
            let bits = |world: &[Vec<f64>]| -> Vec<u64> {
                world
                    .iter()
                    .flatten()
                    .map(|number| number.to_bits())
                    .collect()
            };
            let read = read(&averaged(&world), u32::try_from(size).unwrap()).unwrap();
            assert_eq!(bits(&read), bits(&world), "{size} ranks");
        }
    }

    #[test]
    fn invalid_slots_are_refused() {
        let means = averaged(&[vec![1.0], vec![2.0]]);
        assert!(read(&means, 2).is_some());
        for garbage in [f32::NAN, f32::INFINITY, -1.0, 65_536.0] {
            let mut spoilt = means.clone();
            spoilt[3] = garbage;
            assert_eq!(read(&spoilt, 2), None, "{garbage}");
        }
        assert_eq!(read(&means[1..], 2), None);
    }
}
