use roundhouse_elastic::CheckpointId;

use super::*;
use crate::checkpoint::{Directory, SaverEvent, complete};
use crate::group::threads::Threads;
use trainee::{Trainee, loss, next_group, own, train};

mod trainee;

#[test]
fn best_state_save_begins_on_all_ranks() {
    let volume = tempfile::tempdir().unwrap();
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.in_flight()
    });
    assert_eq!(begun, [Some(1), Some(1)]);
}

#[test]
fn known_newer_generation_ends_wait_for_earlier_save() {
    let volume = tempfile::tempdir().unwrap();
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.checkpointing().saver.hang();
        if trainee.rank == 1 {
            trainee.see_generation(2);
        }
        let Trainee { member, bytes, .. } = trainee;
        member
            .save_best(Some(loss(0.5)), bytes, Duration::MAX)
            .unwrap();
        trainee.in_flight()
    });
    assert_eq!(begun, [None, None]);
}

#[test]
fn wait_for_earlier_save_is_bounded() {
    let volume = tempfile::tempdir().unwrap();
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        if trainee.rank == 1 {
            trainee.checkpointing().saver.hang();
        }
        let Trainee { member, bytes, .. } = trainee;
        member
            .save_best(Some(loss(0.5)), bytes, Duration::ZERO)
            .unwrap();
        trainee.in_flight()
    });
    assert_eq!(begun, [None, None]);
}

#[test]
fn next_generation_restarts_save_of_best_state() {
    let volume = tempfile::tempdir().unwrap();
    let second = next_group(2);
    let found = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        if trainee.rank == 1 {
            // Rank 0 alone decides: another rank may have lost its peers before it knew the result.
            trainee.member.local_state.scores = None;
        }
        trainee.lose_save_on(1);
        trainee.join(2, own(&second, trainee));
        let begun = trainee.in_flight();
        let member = &mut trainee.member;
        member.save_result(&trainee.bytes).unwrap();
        begun
    });
    assert_eq!(found, [Some(1), Some(1)]);
    let directory = Directory::new(volume.path().to_owned());
    let best = complete::best(&directory, BestMetric::Loss).unwrap();
    let (id, best) = best.unwrap();
    // The name of the checkpoint contains its last step, which the first generation committed.
    assert_eq!((id.generation, best.step, best.value), (1, 1, 0.5));
}

#[test]
fn one_rank_reports_lost_best_state_after_further_steps() {
    let volume = tempfile::tempdir().unwrap();
    let second = next_group(2);
    let lost = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.step_while_parts_are_written();
        trainee.lose_save_on(1);
        trainee.form(2, own(&second, trainee));
        let lost = trainee.member.lost_best().unwrap();
        (lost, trainee.member.lost_best().unwrap())
    });
    assert_eq!(lost, [(Some(1), None), (None, None)]);
}

#[test]
fn save_abandoned_by_lost_rank_restarts_after_first_step() {
    let volume = tempfile::tempdir().unwrap();
    let second = next_group(2);
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.step_while_parts_are_written();
        trainee.lose_save_on(1);
        trainee.join(2, own(&second, trainee));
        let before = trainee.in_flight();
        trainee.step();
        (before, trainee.in_flight())
    });
    assert_eq!(begun, [(None, Some(3)), (None, Some(3))]);
}

#[test]
fn next_generation_of_same_ranks_completes_save() {
    let volume = tempfile::tempdir().unwrap();
    let second = next_group(2);
    let in_flight = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.step_while_parts_are_written();
        trainee.join(2, own(&second, trainee));
        let continued = trainee.in_flight();
        trainee.wait_until_durable();
        // The end of this step makes rank 0 complete the save.
        trainee.step();
        trainee.wait_until_idle();
        (continued, trainee.in_flight())
    });
    assert_eq!(in_flight, [(Some(1), None), (Some(1), None)]);
    let directory = Directory::new(volume.path().to_owned());
    let best = complete::best(&directory, BestMetric::Loss).unwrap();
    let (id, best) = best.unwrap();
    assert_eq!((id.generation, best.step, best.value), (1, 1, 0.5));
}

#[test]
fn fenced_checkpoint_is_completed_by_next_generation() {
    let volume = tempfile::tempdir().unwrap();
    let directory = Directory::new(volume.path().to_owned());
    let id = |generation, step| CheckpointId { generation, step };
    train(volume.path(), 1, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.wait_until_durable();
        // The next generation writes before the thread begins to complete the checkpoint.
        let newer = directory.checkpoint(id(2, 9));
        std::fs::create_dir_all(&newer).unwrap();
        trainee.step();
        while trainee.checkpointing().saver.poll() != [SaverEvent::Fenced(2)] {
            std::thread::yield_now();
        }
        std::fs::remove_dir(newer).unwrap();
        trainee.join(2, Threads::group(1, &[]).remove(0));
        trainee.wait_until_idle();
    });
    assert_eq!(directory.list().unwrap(), [id(1, 1)]);
}

#[test]
fn save_interval_counts_across_generations() {
    let volume = tempfile::tempdir().unwrap();
    let second = next_group(2);
    let due = train(volume.path(), 2, |trainee| {
        trainee.checkpointing().saver.begins_every(600);
        trainee.step();
        let early = trainee.checkpointing().saver.is_time();
        if trainee.rank == 1 {
            // This rank has trained for that long; the other has just joined.
            let long = Duration::from_mins(10);
            trainee.checkpointing().saver.take_over((long, false));
        }
        trainee.join(2, own(&second, trainee));
        (early, trainee.checkpointing().saver.is_time())
    });
    assert_eq!(due, [(false, true), (false, true)]);
}

#[test]
fn best_state_that_rank_0_is_completing_is_not_lost() {
    let volume = tempfile::tempdir().unwrap();
    let lost = train(volume.path(), 1, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.wait_until_durable();
        // The end of this step makes rank 0 complete the save.
        trainee.step();
        let group = Threads::group(1, &[]).remove(0);
        trainee.form(2, group);
        trainee.member.lost_best().unwrap()
    });
    assert_eq!(lost, [None]);
}

#[test]
fn saved_best_state_is_not_saved_again() {
    let volume = tempfile::tempdir().unwrap();
    let second = next_group(2);
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(0.5);
        trainee.member.save_result(&trainee.bytes).unwrap();
        trainee.join(2, own(&second, trainee));
        trainee.in_flight()
    });
    assert_eq!(begun, [None, None]);
}

#[test]
fn missing_metric_is_reported_once_and_saves_nothing() {
    let volume = tempfile::tempdir().unwrap();
    let found = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.evaluate(f64::NAN);
        let is_reported = trainee.checkpointing().has_reported_missing_metric;
        let again = trainee
            .checkpointing()
            .missing_metric_to_report(&loss(f64::NAN));
        (is_reported, again, trainee.in_flight())
    });
    let loss = BestMetric::Loss;
    assert_eq!(found, [(true, None, None), (false, Some(loss), None)]);
}
