//! Property: the number of replacements without a step is limited, for random losses of pods.

use proptest::prelude::{Strategy, prop_oneof};
use proptest::strategy::Just;
use proptest::test_runner::Config as ProptestConfig;
use proptest::{collection, prop_assert, proptest};
use roundhouse_planner::testing::world;

use super::{Loss, MOST, limited, lose, prepare_all, reaches, settles};

fn losses() -> impl Strategy<Value = Vec<(usize, Loss)>> {
    let loss = prop_oneof![
        Just(Loss::Evicted),
        Just(Loss::Refused),
        Just(Loss::Deleted),
        Just(Loss::Vanishes),
        Just(Loss::NodeLost)
    ];
    collection::vec((0..4_usize, loss), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn replacements_without_a_step_are_bounded(
        workers in 1..4_u32, losses in losses(),
    ) {
        let mut world = limited(world(workers));
        let mut made = 0;
        for (at, loss) in losses {
            if at < world.observed.pods.len() {
                lose(&mut world, at, loss);
            }
            reaches(&mut world, 7);
            made += settles(&mut world);
            prepare_all(&mut world);
        }
        let counted = world.observed.status.replacements.total;
        prop_assert!(made <= counted as usize, "{made} pods were made and {counted} counted");
        // One plan may replace all pods at once, so the limit may be exceeded by their number.
        prop_assert!(counted <= MOST + workers);
        prop_assert!(counted <= MOST || world.observed.status.is_terminal() || world.plan().status.is_terminal());
    }
}
