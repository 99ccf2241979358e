//! Restart mode with real agents and processes: restarts, survivors and exit codes.
#![allow(clippy::unwrap_used)]

use roundhouse_contract::termination::Reason;

mod harness;

use harness::Job;

#[test]
fn survivors_resume_from_checkpoint_and_worker_rejoins() {
    let mut job = Job::start(3, &["--steps", "120", "--step-millis", "20"], &[]);
    job.issue(1, &[0, 1, 2]);
    job.reaches(&[0, 1, 2], 1, 25);
    job.signal_script(2, "KILL");
    let (code, end) = job.end(2);
    assert_eq!((code, end.reason), (137, Reason::Killed));
    assert_eq!((end.rank, end.generation), (Some(2), 1));
    assert!(end.step >= 25, "{end:?}");

    job.issue(2, &[0, 1]);
    job.reaches(&[0, 1], 2, 45);
    job.restart(2);
    job.issue(3, &[0, 1, 2]);
    for worker in 0..3 {
        let (code, end) = job.end(worker);
        assert_eq!((code, end.reason), (0, Reason::Completed), "{}", job.logs());
        assert_eq!(end.progress.unwrap().step, 120);
    }
    assert!(job.log(0).contains("counted to 120 in 120 steps"));
    let ledger = job.ledger();
    for generation in [2, 3] {
        let done = ledger.iter().position(|(of, _)| *of == generation).unwrap();
        let (last, first) = (ledger[done - 1].1, ledger[done].1);
        assert_eq!(
            first,
            last / 10 * 10 + 1,
            "did not resume from the checkpoint"
        );
    }
    // Only the agent of the killed script was started twice.
    let starts = |worker| job.log(worker).matches("serving http").count();
    assert_eq!((starts(0), starts(1), starts(2)), (1, 1, 2));
}

#[test]
fn script_error_without_peer_failure_ends_the_worker() {
    let window = ["--peer-failure-window-seconds", "1"];
    let mut job = Job::start(2, &["--fault", "1:5:3"], &window);
    job.issue(1, &[0, 1]);
    let (code, end) = job.end(1);
    assert_eq!((code, end.reason, end.step), (3, Reason::Crashed, 5));
    assert!(end.message.ends_with("fault at rank 1, step 5"), "{end:?}");
    assert_eq!(job.end(0).0, 1);
}

#[test]
fn worker_joins_and_leaves_the_process_group() {
    let mut job = Job::start(2, &["--steps", "100000", "--step-millis", "20"], &[]);
    job.issue(1, &[0]);
    job.reaches(&[0], 1, 12);
    job.issue(2, &[0, 1]);
    job.reaches(&[0, 1], 2, 15);
    job.dismiss(3, 1);
    job.issue(3, &[0]);
    assert_eq!(job.end(1).1.reason, Reason::Left);
    job.reaches(&[0], 3, 16);
    job.signal_agent(0, "TERM");
    let (code, end) = job.end(0);
    assert_eq!((code, end.reason), (143, Reason::Left));
}

#[test]
fn stopped_script_that_reports_progress_is_a_stall() {
    let stall = ["--stall-timeout-seconds", "2"];
    let mut job = Job::start(1, &["--steps", "100000", "--step-millis", "20"], &stall);
    job.issue(1, &[0]);
    job.reaches(&[0], 1, 60);
    job.signal_script(0, "STOP");
    let (code, end) = job.end(0);
    assert_eq!((code, end.reason), (76, Reason::Stalled));
    assert!(end.message.contains("of generation 1"), "{end:?}");
}

#[test]
fn script_without_progress_is_never_a_stall() {
    let script = ["--steps", "1", "--step-millis", "3000", "--silent"];
    let mut job = Job::start(1, &script, &["--stall-timeout-seconds", "1"]);
    job.issue(1, &[0]);
    let (code, end) = job.end(0);
    assert_eq!((code, end.reason), (0, Reason::Completed));
    assert_eq!(end.message, "all processes exited with code 0");
}

#[test]
fn membership_of_an_earlier_container_is_ignored() {
    let job = Job::start(1, &["--steps", "100000"], &[]);
    job.issue(4, &[0]);
    job.reaches(&[0], 4, 1);
    let mut job = job;
    job.signal_script(0, "KILL");
    job.end(0);
    job.restart(0);
    job.issue(4, &[0]);
    job.issue(5, &[0]);
    job.reaches(&[0], 5, 1);
    assert_eq!(job.log(0).matches("[agent] generation 4").count(), 1);
}
