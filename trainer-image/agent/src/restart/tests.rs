use roundhouse_contract::membership::{Incarnation, Master};

use super::*;

const PATIENCE: Patience = Patience {
    grace: Duration::from_secs(30),
    peer_failure_window: Duration::from_secs(5),
    stalled: Duration::from_secs(3),
};

fn document(generation: u64, action: Instruction) -> Membership {
    Membership {
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
    Event::Told(document(generation, Instruction::Join))
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

/// A worker of two processes, in generation 2; events come at milliseconds.
fn play(events: &[(u64, Event)]) -> Vec<(u64, Action)> {
    let mut machine = Machine::new(2, 1, PATIENCE);
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

/// What it is about, what happens, what is done.
type Case = (&'static str, Vec<(u64, Event)>, Vec<(u64, Action)>);

fn check(table: Vec<Case>) {
    for (name, events, expected) in table {
        assert_eq!(play(&events), expected, "{name}");
    }
}

#[test]
fn generations_come_and_go() {
    check(vec![
        (
            "all complete, one after the other",
            vec![(100, exits(0, 0)), (9_000, exits(1, 0)), (END, Event::Tick)],
            vec![(9_000, Action::Exit(Outcome::Completed))],
        ),
        (
            "a newer generation ends the processes and starts them anew",
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
            "what is not newer, or no place of this worker, is ignored",
            vec![
                (0, join(2)),
                (1, join(1)),
                (
                    2,
                    Event::Told(Membership {
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
fn processes_fail() {
    check(vec![
        (
            "a killed process is its own fault",
            vec![(100, killed(1, 9)), (END, Event::Tick)],
            vec![(100, Action::Kill), (100, failed(1, End::Signaled(9)))],
        ),
        (
            "a wrong configuration is its own fault",
            vec![(100, exits(1, 64))],
            vec![(100, Action::Kill), (100, failed(1, End::Exited(64)))],
        ),
        (
            "an error may be that of a peer: with a newer generation the worker continues",
            vec![
                (1_000, exits(0, 1)),
                (1_100, exits(1, 1)),
                (2_000, join(3)),
                (END, Event::Tick),
            ],
            vec![(2_000, start(3))],
        ),
        (
            "an abort may be that of a peer, too",
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
            "siblings that do not notice are ended, then the window begins",
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
            "asked to leave by the pod",
            vec![
                (0, Event::LeaveRequested),
                (100, exits(0, 1)),
                (200, exits(1, 0)),
            ],
            vec![(0, Action::Terminate), (200, Action::Exit(Outcome::Left))],
        ),
        (
            "asked to leave by the membership; what comes later changes nothing",
            vec![
                (0, Event::Told(document(3, Instruction::Leave))),
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
            "a hang is ended sooner than a request",
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
fn in_the_lobby_only_a_newer_generation_counts() {
    let now = Instant::now();
    let mut machine = Machine::new(2, 4, PATIENCE);
    assert_eq!(machine.apply(join(4), now), []);
    assert_eq!(machine.apply(Event::Stalled, now), []);
    assert_eq!(machine.wake_at(), None);
    assert_eq!(machine.apply(join(5), now), [start(5)]);
}

#[test]
fn a_process_that_leaves_the_lobby_ends_at_once() {
    let mut machine = Machine::new(2, 0, PATIENCE);
    let actions = machine.apply(Event::LeaveRequested, Instant::now());
    assert_eq!(actions, [Action::Exit(Outcome::Left)]);
    assert_eq!(machine.apply(join(1), Instant::now()), []);
}

#[test]
fn a_generation_that_is_given_up_is_not_remembered_in_the_next() {
    let now = Instant::now();
    let mut machine = Machine::new(1, 0, PATIENCE);
    let place = |generation| Membership {
        procs_per_worker: 1,
        ..document(generation, Instruction::Join)
    };
    machine.apply(Event::Told(place(1)), now);
    machine.apply(exits(0, 1), now);
    machine.apply(Event::Told(place(2)), now);
    assert!(machine.is_running());
    let actions = machine.apply(exits(0, 0), now);
    assert_eq!(actions, [Action::Exit(Outcome::Completed)]);
}
