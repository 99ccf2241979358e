use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};

use super::*;

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
