//! Restart mode with real agents and processes: who restarts, who continues, and how each ends.
#![allow(clippy::unwrap_used)]

use roundhouse_contract::termination::Reason;

mod harness;

use harness::Job;

#[test]
fn survivors_of_a_killed_process_go_on_from_the_checkpoint_and_it_joins_them_again() {
    let mut job = Job::start(3, &["--steps", "120", "--step-millis", "20"], &[]);
    job.issue(1, &[0, 1, 2]);
    job.reaches(&[0, 1, 2], 1, 25);
    job.signal_script(2, "KILL");
    let (code, words) = job.end(2);
    assert_eq!((code, words.reason), (137, Reason::Killed));
    assert_eq!((words.rank, words.generation), (Some(2), 1));
    assert!(words.step >= 25, "{words:?}");

    job.issue(2, &[0, 1]);
    job.reaches(&[0, 1], 2, 45);
    job.restart(2);
    job.issue(3, &[0, 1, 2]);
    for worker in 0..3 {
        let (code, words) = job.end(worker);
        assert_eq!(
            (code, words.reason),
            (0, Reason::Completed),
            "{}",
            job.logs()
        );
        assert_eq!(words.progress.unwrap().step, 120);
    }
    assert!(job.log(0).contains("counted to 120 in 120 steps"));
    let ledger = job.ledger();
    for generation in [2, 3] {
        let done = ledger.iter().position(|(of, _)| *of == generation).unwrap();
        let (last, first) = (ledger[done - 1].1, ledger[done].1);
        assert_eq!(first, last / 10 * 10 + 1, "not from the checkpoint");
    }
    // Only the killed one's agent was ever started again.
    let starts = |worker| job.log(worker).matches("serving http").count();
    assert_eq!((starts(0), starts(1), starts(2)), (1, 1, 2));
}

#[test]
fn an_error_that_no_newer_generation_explains_ends_the_worker_with_its_code() {
    let window = ["--peer-failure-window-seconds", "1"];
    let mut job = Job::start(2, &["--fault", "1:5:3"], &window);
    job.issue(1, &[0, 1]);
    let (code, words) = job.end(1);
    assert_eq!((code, words.reason, words.step), (3, Reason::Crashed, 5));
    assert!(
        words.message.ends_with("fault at rank 1, step 5"),
        "{words:?}"
    );
    assert_eq!(job.end(0).0, 1);
}

#[test]
fn a_worker_grows_the_world_and_leaves_it() {
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
    let (code, words) = job.end(0);
    assert_eq!((code, words.reason), (143, Reason::Left));
}

#[test]
fn a_script_that_stops_is_a_stall_if_it_tells_its_progress() {
    let stall = ["--stall-timeout-seconds", "2"];
    let mut job = Job::start(1, &["--steps", "100000", "--step-millis", "20"], &stall);
    job.issue(1, &[0]);
    job.reaches(&[0], 1, 60);
    job.signal_script(0, "STOP");
    let (code, words) = job.end(0);
    assert_eq!((code, words.reason), (76, Reason::Stalled));
    assert!(words.message.contains("of generation 1"), "{words:?}");
}

#[test]
fn a_script_that_tells_nothing_is_never_judged() {
    let script = ["--steps", "1", "--step-millis", "3000", "--silent"];
    let mut job = Job::start(1, &script, &["--stall-timeout-seconds", "1"]);
    job.issue(1, &[0]);
    let (code, words) = job.end(0);
    assert_eq!((code, words.reason), (0, Reason::Completed));
    assert_eq!(words.message, "all processes exited with code 0");
}

#[test]
fn the_place_of_an_earlier_container_is_not_taken() {
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
