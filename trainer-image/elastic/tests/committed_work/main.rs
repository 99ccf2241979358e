//! No committed step is lost while a member, or an answering volume, holds it. The test runs random
//! scenarios of processes, generations, steps, checkpoints and faults, in which the functions of
//! this crate decide.
//!
//! `COMMITTED_WORK_COURSES` sets the number of scenarios; the default is 200,000.

mod process;
mod scenario;

use std::collections::BTreeMap;

use scenario::{Scenario, Violation};

/// A rule that can be switched off, to show that the promise depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Claims are ordered by their last committed step first, then by origin.
    Order,
    /// The generation of a claim is the one that committed its last step, not the last one
    /// that formed with it.
    Head,
    /// A generation without a state in memory looks at the volume again.
    Look,
    /// A generation with a state in memory compares it with the newest checkpoint.
    LookOfLive,
    /// A generation without a state in memory waits for a volume that does not answer.
    Wait,
    /// The state of a receiver is torn from the first overwritten byte on.
    Torn,
    /// The name of a checkpoint is that of its state, not that of the generation that saves it.
    Name,
    /// A generation continues a save only if its own state comes after the saved one.
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

/// Runs scenarios and returns the violations, each with its first seed and its number.
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
fn no_committed_step_is_lost_while_a_member_holds_it() {
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
