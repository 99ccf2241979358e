use proptest::prelude::{any, prop_assert_eq, proptest};

use super::*;

proptest! {
    #[test]
    fn position_bytes_round_trip(
        (step, samples) in (any::<u64>(), any::<u64>()),
        (batch, from_factor, since_step) in (any::<u64>(), 0.0..1e9, any::<u64>()),
        (total, in_a_row) in (any::<u64>(), any::<u64>()),
        loss_scale in proptest::option::of((1e-9..1e9, any::<u64>())),
        rest in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let position = TrainingPosition {
            step,
            samples,
            pace: BatchPace { batch, from_factor, since_step },
            skips: Skips { total, in_a_row },
            loss_scale: loss_scale.map(|(scale, clean_steps)| LossScale { scale, clean_steps }),
        };
        let mut bytes = position.to_bytes();
        bytes.extend(&rest);
        prop_assert_eq!(TrainingPosition::from_bytes(&bytes), Some((position, rest.as_slice())));
        prop_assert_eq!(TrainingPosition::from_bytes(&bytes[..TrainingPosition::NUM_BYTES - 1]), None);
    }
}
