use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use roundhouse_contract::membership::{Incarnation, Master};

use super::*;

fn document(generation: u64) -> Membership {
    Membership {
        nonce: String::new(),
        generation,
        action: Instruction::Join,
        node_rank: 1,
        nodes: 3,
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

fn leave(generation: u64) -> Membership {
    Membership {
        action: Instruction::Leave,
        ..document(generation)
    }
}

/// Returns a process with local rank 1 that trains in a generation.
fn training(generation: u64) -> Machine {
    let mut machine = Machine::new(1, 0);
    machine.see(&document(generation));
    machine.apply(Event::Formed);
    machine
}

fn committed(agreed_generation: u64) -> Event {
    Event::Boundary {
        agreed_generation,
        all_leave: false,
    }
}

const fn fault(generation: u64) -> Event {
    Event::Fault { generation }
}

fn forming_generation(machine: &Machine) -> Option<u64> {
    match machine.next() {
        Action::Form(place) => Some(place.generation),
        Action::Wait | Action::Step(_) | Action::SaveAlone | Action::Exit(_) => None,
    }
}

fn training_generation(machine: &Machine) -> Option<u64> {
    match machine.next() {
        Action::Step(place) => Some(place.generation),
        Action::Wait | Action::Form(_) | Action::SaveAlone | Action::Exit(_) => None,
    }
}

#[test]
fn lobby_process_forms_the_generation_it_sees() {
    let mut machine = Machine::new(1, 0);
    assert_eq!(machine.next(), Action::Wait);
    assert_eq!(machine.see(&document(1)), Verdict::Accepted);
    let Action::Form(place) = machine.next() else {
        panic!("{machine:?}");
    };
    assert_eq!((place.rank, place.world_size), (3, 6));
}

#[test]
fn generation_found_at_the_start_is_never_joined() {
    let mut machine = Machine::new(0, 4);
    assert_eq!(machine.see(&document(4)), Verdict::Old);
    assert_eq!(machine.see(&document(3)), Verdict::Old);
    assert_eq!(machine.next(), Action::Wait);
    assert_eq!(machine.see(&document(5)), Verdict::Accepted);
    assert_eq!(forming_generation(&machine), Some(5));
}

#[test]
fn newer_generation_interrupts_forming() {
    let mut machine = Machine::new(1, 0);
    machine.see(&document(1));
    let Action::Form(place) = machine.next() else {
        panic!("{machine:?}");
    };
    let place = place.clone();
    assert!(!machine.supersedes(&place));
    machine.see(&document(2));
    assert!(machine.supersedes(&place));
    assert_eq!(forming_generation(&machine), Some(2));
}

#[test]
fn training_continues_until_all_ranks_see_the_new_generation() {
    let mut machine = training(1);
    machine.see(&document(2));
    machine.apply(committed(1));
    assert_eq!(training_generation(&machine), Some(1));
    machine.apply(committed(2));
    assert_eq!(forming_generation(&machine), Some(2));
}

#[test]
fn newer_place_is_pending_while_training() {
    let mut machine = training(1);
    assert_eq!(machine.pending(), None);
    machine.see(&document(2));
    assert_eq!(machine.pending().map(|place| place.generation), Some(2));
    assert_eq!(machine.current_generation(), Some(1));
    machine.apply(committed(2));
    assert_eq!(machine.pending(), None);
    assert_eq!(machine.current_generation(), None);
}

#[test]
fn fault_leads_to_the_next_generation_or_the_lobby() {
    let mut alone = training(1);
    alone.apply(fault(1));
    assert_eq!(alone.next(), Action::Wait);
    assert_eq!(alone.see(&document(1)), Verdict::Old);
    assert_eq!(alone.see(&document(2)), Verdict::Accepted);
    assert_eq!(forming_generation(&alone), Some(2));

    let mut summoned = training(1);
    summoned.see(&document(2));
    summoned.apply(fault(1));
    assert_eq!(forming_generation(&summoned), Some(2));
}

#[test]
fn fault_while_forming_returns_to_the_lobby() {
    let mut machine = Machine::new(1, 0);
    machine.see(&document(1));
    machine.apply(fault(1));
    assert_eq!(machine.next(), Action::Wait);
}

#[test]
fn fault_of_an_old_generation_is_ignored() {
    let mut machine = Machine::new(1, 0);
    machine.see(&document(1));
    machine.see(&document(2));
    machine.apply(fault(1));
    assert_eq!(forming_generation(&machine), Some(2));
}

#[test]
fn leaving_rank_trains_until_a_newer_generation() {
    let mut machine = training(1);
    machine.apply(Event::LeaveRequested);
    assert_eq!(training_generation(&machine), Some(1));
    machine.apply(committed(1));
    assert_eq!(training_generation(&machine), Some(1));
    let mut summoned = machine.clone();
    summoned.see(&document(2));
    summoned.apply(committed(2));
    assert_eq!(summoned.next(), Action::Exit(Outcome::Left));
    machine.apply(Event::Boundary {
        agreed_generation: 1,
        all_leave: true,
    });
    assert_eq!(machine.next(), Action::SaveAlone);
    machine.apply(Event::SavedAlone);
    assert_eq!(machine.next(), Action::Exit(Outcome::Left));
}

#[test]
fn rank_waits_for_a_document_that_its_peers_have_seen() {
    let mut machine = training(1);
    machine.apply(committed(2));
    assert_eq!(machine.next(), Action::Wait);
    machine.see(&document(2));
    assert_eq!(forming_generation(&machine), Some(2));
}

/// Returns the machine of a process that has trained and is to leave after these inputs.
fn leaving(inputs: &[Input]) -> Machine {
    let mut machine = training(1);
    for input in inputs {
        take(&mut machine, input);
    }
    machine
}

#[test]
fn process_that_leaves_alone_saves_its_state_first() {
    use Input::{Happens, See, SeeLeave};
    let asked = Happens(Event::LeaveRequested);
    let all_leave = Happens(Event::Boundary {
        agreed_generation: 1,
        all_leave: true,
    });
    let cases: [(&str, &[Input]); 7] = [
        (
            "asked to leave, then a peer is lost",
            &[asked.clone(), Happens(fault(1))],
        ),
        (
            "waits after a loss, then asked to leave",
            &[Happens(fault(1)), asked.clone()],
        ),
        (
            "asked to leave while it forms the next generation",
            &[See(2), Happens(committed(2)), asked.clone()],
        ),
        (
            "asked to leave while it waits for its document",
            &[Happens(committed(2)), asked.clone()],
        ),
        (
            "removed by a document after a loss",
            &[Happens(fault(1)), SeeLeave(2)],
        ),
        (
            "removed by a document while it forms",
            &[See(2), Happens(committed(2)), SeeLeave(3)],
        ),
        ("all are asked to leave", &[asked, all_leave]),
    ];
    for (what, inputs) in cases {
        let mut machine = leaving(inputs);
        assert_eq!(machine.next(), Action::SaveAlone, "{what}");
        // A newer document does not prevent the save.
        machine.see(&document(7));
        machine.apply(Event::LeaveRequested);
        machine.apply(fault(2));
        assert_eq!(machine.next(), Action::SaveAlone, "{what}");
        machine.apply(Event::SavedAlone);
        assert_eq!(machine.next(), Action::Exit(Outcome::Left), "{what}");
    }
}

#[test]
fn received_state_is_saved_if_forming_fails() {
    let received = || {
        let mut machine = Machine::new(1, 0);
        machine.see(&document(1));
        machine.apply(Event::HasState);
        machine
    };
    let mut asked = received();
    asked.apply(Event::LeaveRequested);
    assert_eq!(asked.next(), Action::SaveAlone);
    let mut in_the_lobby = received();
    in_the_lobby.apply(fault(1));
    assert_eq!(in_the_lobby.next(), Action::Wait);
    in_the_lobby.see(&leave(2));
    assert_eq!(in_the_lobby.next(), Action::SaveAlone);
}

#[test]
fn process_without_state_leaves_at_once() {
    for is_forming in [false, true] {
        let mut machine = Machine::new(1, 0);
        if is_forming {
            machine.see(&document(1));
        }
        machine.apply(Event::LeaveRequested);
        assert_eq!(machine.next(), Action::Exit(Outcome::Left));
    }
}

#[test]
fn generation_can_remove_a_process() {
    let mut machine = training(1);
    machine.see(&leave(2));
    machine.apply(committed(2));
    assert_eq!(machine.next(), Action::Exit(Outcome::Left));
}

#[test]
fn finished_training_is_done_even_if_asked_to_leave() {
    let mut machine = training(1);
    machine.apply(Event::LeaveRequested);
    machine.apply(Event::Finished);
    assert_eq!(machine.next(), Action::Exit(Outcome::Done));
}

#[test]
fn document_without_a_place_is_invalid() {
    let mut machine = Machine::new(2, 0);
    assert_eq!(machine.see(&document(1)), Verdict::Invalid);
    let mut machine = Machine::new(0, 0);
    let mut outside = document(1);
    outside.node_rank = 3;
    assert_eq!(machine.see(&outside), Verdict::Invalid);
    let mut huge = document(1);
    huge.nodes = u32::MAX;
    assert_eq!(machine.see(&huge), Verdict::Invalid);
    assert_eq!(machine.next(), Action::Wait);
}

fn take(machine: &mut Machine, input: &Input) {
    match input {
        Input::See(generation) => {
            machine.see(&document(*generation));
        }
        Input::SeeLeave(generation) => {
            machine.see(&leave(*generation));
        }
        Input::Happens(event) => machine.apply(*event),
    }
}

#[derive(Clone, Debug)]
enum Input {
    See(u64),
    SeeLeave(u64),
    Happens(Event),
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => (0_u64..8).prop_map(Input::See),
        1 => (0_u64..8).prop_map(Input::SeeLeave),
        3 => Just(Input::Happens(Event::Formed)),
        4 => (0_u64..8).prop_map(|generation| Input::Happens(committed(generation))),
        1 => (0_u64..8).prop_map(|generation| Input::Happens(fault(generation))),
        2 => Just(Input::Happens(Event::HasState)),
        1 => Just(Input::Happens(Event::LeaveRequested)),
        1 => Just(Input::Happens(Event::Finished)),
        1 => Just(Input::Happens(Event::SavedAlone)),
        1 => (0_u64..8).prop_map(|agreed_generation| Input::Happens(Event::Boundary {
            agreed_generation,
            all_leave: true,
        })),
    ]
}

fn current_generation(machine: &Machine) -> Option<u64> {
    forming_generation(machine).or_else(|| training_generation(machine))
}

proptest! {
    #[test]
    fn generations_only_grow_and_the_end_is_final(
        start in 0_u64..4, inputs in proptest::collection::vec(input(), 0..40), local in any::<bool>(),
    ) {
        let mut machine = Machine::new(u32::from(local), start);
        let mut last = start;
        let mut ended = None;
        for input in inputs {
            let was_training = training_generation(&machine);
            match input {
                Input::See(generation) => {
                    machine.see(&document(generation));
                    prop_assert!(
                        was_training.is_none() || training_generation(&machine) == was_training,
                        "a document alone moved a training process"
                    );
                }
                Input::SeeLeave(generation) => { machine.see(&leave(generation)); }
                Input::Happens(event) => machine.apply(event),
            }
            if let Some(generation) = current_generation(&machine) {
                prop_assert!(generation > start && generation >= last);
                prop_assert!(generation <= machine.newest_generation());
                last = generation;
            }
            if let Action::Exit(outcome) = machine.next() {
                prop_assert!(ended.is_none_or(|before| before == outcome));
                ended = Some(outcome);
            } else {
                prop_assert!(ended.is_none());
            }
        }
    }

    /// The state of a process remains in one of three ways: the process tried to save a checkpoint,
    /// the remaining ranks have the state, or training is complete.
    #[test]
    fn no_process_leaves_with_an_unsaved_state(
        inputs in proptest::collection::vec(input(), 0..40),
    ) {
        let mut machine = Machine::new(1, 0);
        let mut has_state = false;
        for input in inputs {
            let before = machine.clone();
            take(&mut machine, &input);
            let has_left = machine.next() == Action::Exit(Outcome::Left)
                && before.next() != Action::Exit(Outcome::Left);
            if has_left && has_state {
                let saves = before.next() == Action::SaveAlone;
                let is_whole = matches!(
                    (&input, before.current_generation()),
                    (
                        Input::Happens(Event::Boundary { agreed_generation, all_leave: false }),
                        Some(current),
                    ) if *agreed_generation > current
                );
                prop_assert!(saves || is_whole, "{before:?} and {input:?}");
            }
            has_state |= machine.current_generation().is_some()
                || matches!(&input, Input::Happens(Event::HasState)) && forming_generation(&before).is_some();
        }
    }
}
