//! Runs each target with its seeds, its findings, and mutations that are the same in each run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fastrand::Rng;
use roundhouse_fuzz::TARGETS;

/// The number of mutated inputs for each target.
const NUM_MUTATIONS: u64 = 2_000;

#[test]
fn seeds_and_findings_cause_no_panic() {
    for target in TARGETS {
        for seed in (target.seeds)() {
            (target.read)(&seed);
        }
        let findings = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("findings")
            .join(target.name);
        for entry in std::fs::read_dir(findings).into_iter().flatten() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| (target.read)(&bytes)));
            assert!(result.is_ok(), "{}", path.display());
        }
    }
}

#[test]
fn mutated_seeds_cause_no_panic() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        for number in 0..NUM_MUTATIONS {
            let mut random = Rng::with_seed(number);
            let mut input = random.choice(&seeds).unwrap().clone();
            for _ in 0..random.usize(1..6) {
                mutate(&mut input, &mut random);
            }
            let result = catch_unwind(AssertUnwindSafe(|| (target.read)(&input)));
            assert!(result.is_ok(), "{} {number}: {input:?}", target.name);
        }
    }
}

/// Makes one change of a kind that often breaks readers.
fn mutate(input: &mut Vec<u8>, random: &mut Rng) {
    let at = random.usize(..=input.len());
    let end = (at + random.usize(..16)).min(input.len());
    match random.u8(..6) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => {
            let again = input[at..end].to_vec();
            drop(input.splice(at..at, again));
        }
        3 => {
            let extremes = [0, 1, u32::MAX, u32::MAX >> 1, 1 << 31];
            let number = extremes[random.usize(..extremes.len())];
            let width = end - at;
            let number = number.to_be_bytes();
            let bytes = number.iter().cycle().take(width).copied();
            drop(input.splice(at..end, bytes));
        }
        4 => drop(input.splice(at..end, *b"99999999999999999999")),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.u8(..8);
            }
        }
    }
}
