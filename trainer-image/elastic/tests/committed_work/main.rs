//! No committed step is lost while a process or an answering volume that takes part holds it: random courses of processes,
//! generations, steps, checkpoints and faults, in which the crate's own functions decide.
//!
//! `COMMITTED_WORK_COURSES` sets how many courses are run; 200,000 without it.

mod process;
mod scenario;

use std::collections::BTreeMap;

use scenario::{Scenario, Violation};

/// A rule that a course can go without, to show that the courses need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Claims are ordered by their last committed step before where they lie.
    Order,
    /// A claim's generation is the one that committed its last step, not the last one that formed with it.
    Head,
    /// A generation without a state in memory looks at the volume again.
    Look,
    /// A generation with a state in memory compares it with the newest checkpoint, too.
    LookOfLive,
    /// A generation without a state in memory waits for a volume that does not answer.
    Wait,
    /// A receiver's state is torn from the first byte that it overwrites.
    Torn,
    /// A checkpoint has the name of its state, not that of the generation that saves it.
    Name,
    /// A generation continues a save only if its own state comes after the one that is saved.
    History,
}

const RULES: [Rule; 8] = [
    Rule::Order,
    Rule::Head,
    Rule::Look,
    Rule::LookOfLive,
    Rule::Wait,
    Rule::Torn,
    Rule::Name,
    Rule::History,
];

fn num_scenarios() -> u64 {
    let number = std::env::var("COMMITTED_WORK_COURSES").ok();
    number.and_then(|it| it.parse().ok()).unwrap_or(200_000)
}

/// Violations of so many courses, with the seed of the first one of each kind.
fn violations(num_scenarios: u64) -> BTreeMap<Violation, (u64, u64)> {
    let mut found = BTreeMap::new();
    for seed in 0..num_scenarios {
        if let Err(violation) = Scenario::new(seed, None).run() {
            found.entry(violation).or_insert((seed, 0)).1 += 1;
        }
    }
    found
}

#[test]
fn no_committed_step_is_lost_while_one_that_takes_part_holds_it() {
    let found = violations(num_scenarios());
    assert!(
        found.is_empty(),
        "violation: (first seed, number): {found:?}"
    );
}

#[test]
fn each_rule_is_needed() {
    for rule in RULES {
        let violation = |seed: u64| Scenario::new(seed, Some(rule)).run().err();
        let found = (0..200_000).find_map(|seed| Some((seed, violation(seed)?)));
        assert!(found.is_some(), "no scenario needs {rule:?}");
        println!("without {rule:?}: {found:?}");
    }
}
