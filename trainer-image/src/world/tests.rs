use roundhouse_elastic::saving::Stage;
use roundhouse_elastic::{Claim, Origin};

use super::*;

#[test]
fn a_world_of_one_agrees_with_itself() {
    let world = World::alone();
    let fine = Standing {
        finite: true,
        leaving: false,
        newest_seen: 7,
        saving: Saving {
            stage: Stage::Durable,
            is_time: true,
            is_stuck: true,
            gives_up: false,
            durable_line: 4,
        },
        own_time: Duration::from_millis(250),
    };
    let end = world.end_step(2.5, &fine).unwrap();
    assert!((end.loss_sum - 2.5).abs() < f64::EPSILON);
    assert_eq!(end.agreement.newest_generation, 7);
    assert!(end.agreement.all_finite);
    assert!(!end.agreement.all_leave);
    assert_eq!(end.own_seconds, [0.25]);
    assert_eq!(end.saving.stages.num_durable, 1);
    assert!(end.saving.is_time && end.saving.durable_line == 4);
    assert!(end.saving.num_stuck == 1 && !end.saving.gives_up);
    assert_eq!(world.sum_saving(&fine.saving).unwrap(), end.saving);
    let diverged = Standing {
        finite: false,
        leaving: true,
        ..fine
    };
    let end = world.end_step(f64::NAN, &diverged).unwrap();
    assert!(!end.agreement.all_finite && end.agreement.all_leave);
    let claim = Claim {
        origin: Origin::Live,
        generation: 2,
        step: 3,
    };
    let own = Own {
        claim,
        chain_bytes: 48,
        first_generation: 9,
        evaluated: 64,
    };
    let agreed = world.agree_on_state(&own).unwrap();
    let numbers = (
        agreed.chain_bytes,
        agreed.first_generation,
        agreed.evaluated,
    );
    assert_eq!((agreed.source.claim, numbers), (claim, (48, 9, 64)));
    let agreement = world.agree(5, true).unwrap();
    assert!(agreement.newest_generation == 5 && agreement.all_leave);
}
