use super::*;

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
