//! Committed steps that are lost with all processes and repeated: the next processes report them.

use roundhouse_contract::RepeatSource;
use roundhouse_member::checkpoint::Directory;
use serde_json::Value;

use crate::g07_checkpoints::{beyond, checkpoints, endless, step_of};
use crate::harness::{Job, every_steps, trainer};

/// Steps between checkpoints. The interval is large, so that steps after a checkpoint are certainly
/// lost.
const EVERY: u64 = 200;

fn start(config: &Value, world: u32, volume: &std::path::Path, generation: u64) -> Job {
    let job = Job::with_checkpoints(config, world, every_steps(volume.to_owned(), EVERY));
    job.pace_steps(2);
    job.issue_when_ready(generation);
    job
}

/// Number of steps in the files of the ledger.
fn num_lines(volume: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(Directory::new(volume.to_owned()).ledger());
    let paths = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path());
    let lines = paths.map(|path| std::fs::read_to_string(path).unwrap().lines().count() - 1);
    lines.sum::<usize>() as u64
}

#[test]
fn job_that_lost_all_processes_reports_repeated_steps() {
    let volume = tempfile::tempdir().unwrap();
    let mut job = start(&endless(), 2, volume.path(), 1);
    job.wait_until("steps after a checkpoint", || {
        let path = volume.path().join("checkpoints");
        path.is_dir() && {
            let newest = checkpoints(volume.path()).last().map(|it| step_of(it));
            newest.is_some_and(|newest| num_lines(volume.path()) > newest + 20)
        }
    });
    for rank in 0..2 {
        job.signal(rank, "-KILL");
    }
    assert_eq!(job.exit_codes(), vec![None; 2]);
    let newest = checkpoints(volume.path())
        .last()
        .map(|it| step_of(it))
        .unwrap();

    let mut resumed = start(&beyond(volume.path()), 2, volume.path(), 2);
    resumed.complete();
    let progress = resumed.progress();
    let repeat = progress
        .last_repeat
        .unwrap_or_else(|| panic!("{}", resumed.logs()));
    assert!(progress.repeated_steps >= 20, "{progress:?}");
    assert_eq!((repeat.first, repeat.after), (newest + 1, newest));
    assert_eq!(repeat.last, newest + progress.repeated_steps);
    assert_eq!(repeat.source, RepeatSource::Checkpoint);
    let words = repeat.words(progress.repeated_steps);
    assert!(
        resumed.logs().contains(&words),
        "{words}\n{}",
        resumed.logs()
    );
    let metric = resumed.metric(0, "roundhouse_train_repeated_steps");
    assert!((metric - progress.repeated_steps as f64).abs() < 0.5);

    let output = trainer()
        .arg("audit")
        .arg(volume.path())
        .arg("--json")
        .output()
        .unwrap();
    let audit: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(audit["proven"], true, "{audit}");
    assert_eq!(audit["repeatedSteps"], progress.repeated_steps, "{audit}");
    let by = &audit["generations"][0]["repeated"]["by"];
    assert_eq!(
        (&by["generation"], &by["source"]),
        (&2.into(), &"checkpoint".into()),
        "{audit}"
    );
}
