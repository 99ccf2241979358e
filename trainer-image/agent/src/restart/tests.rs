use roundhouse_contract::membership::{Incarnation, Master};

use super::*;

const TIMEOUTS: Timeouts = Timeouts {
    grace: Duration::from_secs(30),
    peer_failure_window: Duration::from_secs(5),
    stalled: Duration::from_secs(3),
};

fn document(generation: u64, action: Instruction) -> Membership {
    Membership {
        life: String::new(),
        nonce: String::new(),
        generation,
        action,
        node_rank: 0,
        nodes: 2,
        procs_per_worker: 2,
        master: Master {
            address: "10.0.0.1".to_owned(),
            port: 29_500,
        },
        members: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
        repeats: 0,
    }
}

fn join(generation: u64) -> Event {
    Event::MembershipChanged(document(generation, Instruction::Join))
}

fn start(generation: u64) -> Action {
    Action::Start(document(generation, Instruction::Join))
}

fn exits(local_rank: u32, code: i32) -> Event {
    Event::Ended(local_rank, End::Exited(code))
}

fn killed(local_rank: u32, signal: i32) -> Event {
    Event::Ended(local_rank, End::Signaled(signal))
}

fn failed(local_rank: u32, end: End) -> Action {
    Action::Exit(Outcome::Failed(Ended {
        local_rank,
        end,
        on_request: false,
    }))
}

/// A worker of two processes in generation 2. Events arrive at these milliseconds.
fn play(events: &[(u64, Event)]) -> Vec<(u64, Action)> {
    let mut machine = Machine::new(2, 1, TIMEOUTS);
    let begin = Instant::now();
    assert_eq!(machine.apply(join(2), begin), [start(2)]);
    let mut actions = Vec::new();
    let mut act = |machine: &mut Machine, at: u64, event: Event| {
        let done = machine.apply(event, begin + Duration::from_millis(at));
        actions.extend(done.into_iter().map(|action| (at, action)));
    };
    for (at, event) in events {
        while let Some(due) = machine.wake_at() {
            let due = u64::try_from((due - begin).as_millis()).unwrap();
            if due >= *at {
                break;
            }
            act(&mut machine, due, Event::Tick);
        }
        act(&mut machine, *at, event.clone());
    }
    actions
}

const END: u64 = 100_000;

/// Fields: name, events, expected actions.
type Case = (&'static str, Vec<(u64, Event)>, Vec<(u64, Action)>);

fn check(table: Vec<Case>) {
    for (name, events, expected) in table {
        assert_eq!(play(&events), expected, "{name}");
    }
}

#[test]
fn generations_restart_the_processes() {
    check(vec![
        (
            "all complete, one after the other",
            vec![(100, exits(0, 0)), (9_000, exits(1, 0)), (END, Event::Tick)],
            vec![(9_000, Action::Exit(Outcome::Completed))],
        ),
        (
            "a newer generation restarts the processes",
            vec![(100, join(3)), (200, exits(0, 0)), (300, killed(1, 15))],
            vec![(100, Action::Terminate), (300, start(3))],
        ),
        (
            "a process that ignores SIGTERM is killed after the grace",
            vec![(0, join(3)), (40_000, killed(0, 9)), (40_001, killed(1, 9))],
            vec![
                (0, Action::Terminate),
                (30_000, Action::Kill),
                (40_001, start(3)),
            ],
        ),
        (
            "of two newer generations the last one counts",
            vec![
                (0, join(3)),
                (100, killed(0, 15)),
                (200, join(5)),
                (300, join(4)),
                (400, killed(1, 15)),
            ],
            vec![(0, Action::Terminate), (400, start(5))],
        ),
        (
            "old generations and places of other workers are ignored",
            vec![
                (0, join(2)),
                (1, join(1)),
                (
                    2,
                    Event::MembershipChanged(Membership {
                        procs_per_worker: 3,
                        ..document(9, Instruction::Join)
                    }),
                ),
            ],
            vec![],
        ),
    ]);
}

#[test]
fn failing_processes_are_judged() {
    check(vec![
        (
            "a killed process is the worker's own fault",
            vec![(100, killed(1, 9)), (END, Event::Tick)],
            vec![(100, Action::Kill), (100, failed(1, End::Signaled(9)))],
        ),
        (
            "a wrong configuration is the worker's own fault",
            vec![(100, exits(1, 64))],
            vec![(100, Action::Kill), (100, failed(1, End::Exited(64)))],
        ),
        (
            "an error may be caused by a peer: with a newer generation the worker continues",
            vec![
                (1_000, exits(0, 1)),
                (1_100, exits(1, 1)),
                (2_000, join(3)),
                (END, Event::Tick),
            ],
            vec![(2_000, start(3))],
        ),
        (
            "an abort may be caused by a peer",
            vec![
                (1_000, killed(0, 6)),
                (1_100, killed(1, 6)),
                (2_000, join(3)),
            ],
            vec![(2_000, start(3))],
        ),
        (
            "without a newer generation the first error is the worker's",
            vec![
                (1_000, exits(0, 1)),
                (1_100, exits(1, 2)),
                (END, Event::Tick),
            ],
            vec![(6_100, failed(0, End::Exited(1)))],
        ),
        (
            "siblings that keep running are ended, then the window begins",
            vec![
                (1_000, exits(0, 1)),
                (2_100, killed(1, 9)),
                (END, Event::Tick),
            ],
            vec![
                (1_500, Action::Terminate),
                (2_000, Action::Kill),
                (6_500, failed(0, End::Exited(1))),
            ],
        ),
        (
            "a sibling that was killed explains the error",
            vec![(1_000, exits(0, 1)), (1_200, killed(1, 11))],
            vec![(1_200, Action::Kill), (1_200, failed(1, End::Signaled(11)))],
        ),
        (
            "the newer generation comes while the siblings are being ended",
            vec![
                (1_000, exits(0, 1)),
                (1_600, join(3)),
                (1_700, killed(1, 15)),
            ],
            vec![(1_500, Action::Terminate), (1_700, start(3))],
        ),
    ]);
}

#[test]
fn workers_leave_or_hang() {
    check(vec![
        (
            "asked to leave by a signal",
            vec![
                (0, Event::LeaveRequested),
                (100, exits(0, 1)),
                (200, exits(1, 0)),
            ],
            vec![(0, Action::Terminate), (200, Action::Exit(Outcome::Left))],
        ),
        (
            "asked to leave by the membership; later events change nothing",
            vec![
                (0, Event::MembershipChanged(document(3, Instruction::Leave))),
                (50, join(4)),
                (100, killed(0, 15)),
                (200, killed(1, 15)),
            ],
            vec![(0, Action::Terminate), (200, Action::Exit(Outcome::Left))],
        ),
        (
            "asked to leave while in doubt",
            vec![
                (0, exits(0, 1)),
                (1, exits(1, 1)),
                (100, Event::LeaveRequested),
            ],
            vec![(100, Action::Exit(Outcome::Left))],
        ),
        (
            "a hung process is killed sooner than a leaving one",
            vec![
                (0, Event::Stalled),
                (9_000, killed(0, 9)),
                (9_001, killed(1, 9)),
            ],
            vec![
                (0, Action::Terminate),
                (3_000, Action::Kill),
                (9_001, Action::Exit(Outcome::Stalled)),
            ],
        ),
    ]);
}

#[test]
fn lobby_accepts_only_a_newer_generation() {
    let now = Instant::now();
    let mut machine = Machine::new(2, 4, TIMEOUTS);
    assert_eq!(machine.apply(join(4), now), []);
    assert_eq!(machine.apply(Event::Stalled, now), []);
    assert_eq!(machine.wake_at(), None);
    assert_eq!(machine.apply(join(5), now), [start(5)]);
}

#[test]
fn worker_in_the_lobby_leaves_at_once() {
    let mut machine = Machine::new(2, 0, TIMEOUTS);
    let actions = machine.apply(Event::LeaveRequested, Instant::now());
    assert_eq!(actions, [Action::Exit(Outcome::Left)]);
    assert_eq!(machine.apply(join(1), Instant::now()), []);
}

#[test]
fn failures_of_an_abandoned_generation_are_forgotten() {
    let now = Instant::now();
    let mut machine = Machine::new(1, 0, TIMEOUTS);
    let place = |generation| Membership {
        procs_per_worker: 1,
        ..document(generation, Instruction::Join)
    };
    machine.apply(Event::MembershipChanged(place(1)), now);
    machine.apply(exits(0, 1), now);
    machine.apply(Event::MembershipChanged(place(2)), now);
    assert!(machine.is_running());
    let actions = machine.apply(exits(0, 0), now);
    assert_eq!(actions, [Action::Exit(Outcome::Completed)]);
}
