use roundhouse_contract::membership::{Incarnation, Master};

use super::*;

mod leaving;
mod properties;

fn document(generation: u64) -> Membership {
    Membership {
        life: String::new(),
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
fn process_in_the_lobby_saves_the_copy_that_its_worker_has_kept() {
    for (copies, expected) in [
        (true, Action::SaveAlone),
        (false, Action::Exit(Outcome::Left)),
    ] {
        let mut machine = Machine::new(1, 0);
        if copies {
            machine.apply(Event::HasState);
        }
        assert_eq!(machine.next(), Action::Wait);
        machine.apply(Event::LeaveRequested);
        assert_eq!(machine.next(), expected);
    }
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
