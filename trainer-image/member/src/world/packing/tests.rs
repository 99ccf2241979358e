use std::time::Duration;

use roundhouse_elastic::saving::Stage;

use super::*;

fn standing(rank: u64) -> RankVote {
    RankVote {
        finite: true,
        leaving: rank == 1,
        newest_seen: 4 + rank,
        saving: Saving {
            stage: Stage::Durable,
            is_time: true,
            is_stuck: rank == 2,
            gives_up: false,
            durable_line: 7 * (rank + 1),
            is_copying: false,
            copy_failed: false,
        },
        own_time: Duration::from_millis(250 * rank),
    }
}

/// The sums over three ranks with these losses, and the outcome from separate numbers of the ranks.
fn summed(losses: [f64; 3], standing: impl Fn(u64) -> RankVote) -> (Vec<f64>, StepOutcome) {
    let ranks = losses.iter().zip(0..).map(|(loss, rank)| {
        let own = standing(u64::from(rank));
        let packed = Packing::new(rank, 3).pack(&own, *loss);
        (packed, own.to_numbers(rank, *loss).to_vec())
    });
    let (packed, apart): (Vec<_>, Vec<_>) = ranks.unzip();
    let sums = (0..packed[0].len())
        .map(|place| packed.iter().map(|numbers| numbers[place]).sum())
        .collect();
    (sums, StepOutcome::of_ranks(&apart).unwrap())
}

#[test]
fn packed_sums_equal_separate_numbers() {
    let packing = Packing::new(1, 3);
    // Their sum depends on the order.
    let losses = [0.1, 1e16, -1e16];
    let (sums, expected) = summed(losses, standing);
    assert_eq!(packing.unpack(&sums).unwrap(), expected);
    assert!(!packing.has_dropped(&sums));
    assert_eq!(expected.agreement.newest_generation, 4);
    assert_eq!(expected.compute_seconds, [0.0, 0.25, 0.5]);
    assert_eq!(expected.saving.durable_line, 7);
    let (sums, expected) = summed(losses, |rank| RankVote {
        finite: rank != 2,
        ..standing(rank)
    });
    assert!(!expected.agreement.all_finite);
    assert_eq!(packing.unpack(&sums).unwrap(), expected);
}

#[test]
fn nonfinite_loss_is_flagged_and_sums_stay_finite() {
    let (sums, _) = summed([1.0, f64::NAN, f64::INFINITY], standing);
    assert!(sums.iter().all(|sum| sum.is_finite()));
    let end = Packing::new(0, 3).unpack(&sums).unwrap();
    assert!(end.loss_sum.is_nan() && !end.agreement.all_finite);
}

#[test]
fn device_fills_in_its_slots() {
    let packing = Packing::new(2, 3);
    let (own, loss) = (standing(2), -0.5);
    let mut values = packing.pack(&own, 0.0);
    assert_eq!(values[..Packing::NUM_OF_DEVICE], [0.0; 3]);
    values[packing.place_of_loss()] = loss;
    assert_eq!(values, packing.pack(&own, loss));
    values[..Packing::NUM_OF_DEVICE].copy_from_slice(&[0.0, 1.0, 1.0]);
    assert!(packing.has_dropped(&values));
    let end = packing.unpack(&values).unwrap();
    assert!(!end.agreement.all_finite && end.loss_sum.to_bits() == loss.to_bits());
}

#[test]
fn sums_of_another_world_size_are_rejected() {
    let (sums, _) = summed([1.0, 2.0, 3.0], standing);
    assert_eq!(Packing::new(0, 2).unpack(&sums), None);
    assert!(Packing::new(0, 3).has_dropped(&[]));
}
