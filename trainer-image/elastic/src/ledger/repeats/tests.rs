use std::convert::Infallible;

use proptest::collection::vec;
use proptest::prelude::{any, prop_assert_eq, proptest};

use super::*;
use crate::audit::audit;
use crate::data_schedule::DataSchedule;
use crate::ledger::{Header, LedgerIdentity};

fn identity() -> LedgerIdentity {
    LedgerIdentity::of(&DataSchedule::of_steps(1_000, 10, 1_000), 7)
}

/// A ledger in memory, and all states that ever existed, as the lines that lead to them.
#[derive(Default)]
struct Ledger {
    files: Vec<File>,
    states: Vec<Vec<Line>>,
    generation: u64,
    first_generation: u64,
}

impl Ledger {
    fn read(&self, generation: u64, from: u64) -> Option<File> {
        let mut files = self.files.iter();
        let found = files.find(|file| file.header.generation == generation);
        found.map(|file| File {
            lines: file
                .lines
                .iter()
                .filter(|it| it.step >= from)
                .copied()
                .collect(),
            ..file.clone()
        })
    }

    /// Whether a rank may know that a line is durable. A file makes all lines that it
    /// writes again durable together.
    fn has(&self, line: &Line) -> bool {
        let mut files = self.files.iter();
        files.any(|file| is_whole(file) && file.lines.contains(line))
    }

    /// The next generation begins with a state, commits `num_steps` steps and makes `num_written`
    /// lines of its file durable. The ranks do not know whether the last `num_unknown` lines of the
    /// state are durable; lines that no file has are not durable.
    fn form(
        &mut self,
        state: &[Line],
        num_unknown: usize,
        num_steps: u64,
        num_written: usize,
    ) -> Option<Repeats> {
        self.generation += 1;
        let generation = self.generation;
        let durable = state
            .iter()
            .rposition(|line| self.has(line))
            .map_or(0, |at| at + 1);
        let durable = durable.saturating_sub(num_unknown);
        let previous = durable.checked_sub(1).map(|at| state[at].head());
        let head = state
            .last()
            .map_or_else(|| Head::start(&identity()), Line::head);
        let source = Source::Rank(0);
        let beginning = Beginning {
            generation,
            first_generation: self.first_generation,
            previous,
            head,
            source,
        };
        let older: Vec<u64> = self
            .files
            .iter()
            .map(|file| file.header.generation)
            .collect();
        let Ok(repeats) = count(&beginning, &state[durable..], &older, |at, from| {
            Ok::<_, Infallible>(self.read(at, from))
        });
        let mut now = state.to_vec();
        for step in head.step + 1..=head.step + num_steps {
            let batch = DataSchedule::of_steps(1_000, 10, 1_000)
                .next_batch(step - 1)
                .unwrap();
            let head = now
                .last()
                .map_or_else(|| Head::start(&identity()), Line::head);
            now.push(head.next(&batch, generation, 0.5));
        }
        let start = Some(Start {
            head,
            source,
            repeats,
        });
        let header = Header {
            generation,
            previous,
            identity: identity(),
            start,
        };
        let lines = now[durable..].iter().take(num_written).copied().collect();
        self.files.push(File { header, lines });
        self.states.push(now);
        repeats
    }

    /// Simulates that the newest generation could not read an older file when it began.
    fn forget_count(&mut self) {
        if let Some(start) = self
            .files
            .last_mut()
            .and_then(|file| file.header.start.as_mut())
        {
            start.repeats = None;
        }
    }

    fn newest(&self) -> Vec<Line> {
        self.states.last().cloned().unwrap_or_default()
    }

    fn audited(&self) -> u64 {
        let proof = audit(self.files.clone(), &[]).unwrap();
        proof.rows.iter().map(|row| row.num_superseded).sum()
    }
}

const ALL: usize = usize::MAX;

#[test]
fn steps_after_the_start_state_are_repeated() {
    let mut ledger = Ledger::default();
    assert_eq!(ledger.form(&[], 0, 42, ALL), Some(Repeats::default()));
    let newest = ledger.newest();
    let repeats = ledger.form(&newest[..30], 0, 5, ALL).unwrap();
    let newest_repeat = Repeat {
        generation: 2,
        num_steps: 12,
        first: 31,
        last: 42,
        after: 30,
        source: Source::Rank(0),
    };
    assert_eq!((repeats.total, repeats.newest), (12, Some(newest_repeat)));
    // A generation that repeats nothing keeps the known count.
    let newest = ledger.newest();
    assert_eq!(ledger.form(&newest, 0, 5, ALL), Some(repeats));
    let newest = ledger.newest();
    assert_eq!(ledger.form(&newest[..39], 0, 1, ALL).unwrap().total, 13);
    assert_eq!(ledger.audited(), 13);
}

#[test]
fn lost_steps_are_counted_once_after_a_restart() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 7, ALL);
    let repeats = ledger.form(&[], 0, 5, ALL).unwrap();
    assert_eq!(
        repeats.newest.map(|it| (it.generation, it.num_steps)),
        Some((2, 7))
    );
    // A rank that joined continues. It knows of no durable line.
    let newest = ledger.newest();
    assert_eq!(ledger.form(&newest, ALL, 1, ALL), Some(repeats));
    let repeats = ledger.form(&[], 0, 5, ALL).unwrap();
    let named = repeats
        .newest
        .map(|it| (it.generation, it.num_steps, it.last));
    assert_eq!((repeats.total, named), (13, Some((4, 6, 6))));
    assert_eq!(ledger.audited(), 13);
}

#[test]
fn rewritten_lines_are_not_repeated_steps() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 10, ALL);
    let newest = ledger.newest();
    let repeats = ledger.form(&newest, 4, 3, ALL).unwrap();
    assert_eq!((repeats.total, ledger.audited()), (0, 0));
}

#[test]
fn generation_without_commits_repeats_nothing() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 10, ALL);
    let newest = ledger.newest();
    // It would repeat four steps, but breaks before the first of them.
    assert_eq!(ledger.form(&newest[..6], 0, 0, ALL).unwrap().total, 4);
    assert_eq!(ledger.audited(), 0);
    // The next generation continues from the newest state.
    assert_eq!(ledger.form(&newest, 0, 2, ALL).unwrap().total, 0);
    assert_eq!(ledger.audited(), 0);
}

#[test]
fn repeats_of_an_earlier_job_are_not_of_this_run() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 10, ALL);
    let newest = ledger.newest();
    ledger.form(&newest[..6], 0, 10, ALL);
    (ledger.generation, ledger.first_generation) = (1_000_000, 1_000_000);
    let newest = ledger.newest();
    let repeats = ledger.form(&newest[..14], 0, 4, ALL).unwrap();
    assert_eq!((repeats.total, repeats.of_run()), (6, 2));
    let newest = ledger.newest();
    let repeats = ledger.form(&newest[..17], 0, 1, ALL).unwrap();
    assert_eq!((repeats.total, repeats.of_run()), (7, 3));
}

#[test]
fn unknown_start_line_has_no_count() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 10, ALL);
    let newest = ledger.newest();
    ledger.files[0].lines.clear();
    let beginning = Beginning {
        generation: 2,
        first_generation: 0,
        previous: Some(newest[9].head()),
        head: newest[9].head(),
        source: Source::Checkpoint,
    };
    let Ok(found) = count(&beginning, [], &[1], |at, from| {
        Ok::<_, Infallible>(ledger.read(at, from))
    });
    assert_eq!(found, None);
}

#[test]
fn next_generation_counts_for_one_that_could_not() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 42, ALL);
    let newest = ledger.newest();
    ledger.form(&newest[..30], 0, 5, ALL);
    ledger.forget_count();
    let newest = ledger.newest();
    let repeats = ledger.form(&newest[..33], 0, 5, ALL).unwrap();
    assert_eq!((repeats.total, ledger.audited()), (14, 14));
}

#[test]
fn count_resumes_after_many_uncounted_generations() {
    let mut ledger = Ledger::default();
    ledger.form(&[], 0, 5, ALL);
    for _ in 0..3 * MOST_UNCOUNTED {
        ledger.forget_count();
        let newest = ledger.newest();
        ledger.form(&newest[..newest.len() - 1], 0, 2, ALL);
    }
    let newest = ledger.newest();
    let repeats = ledger.form(&newest, 0, 1, ALL).unwrap();
    assert!(repeats.total >= u64::from(MOST_UNCOUNTED), "{repeats:?}");
    // From now on the count needs no older file.
    ledger.files.drain(..ledger.files.len() - 1);
    let newest = ledger.newest();
    assert_eq!(ledger.form(&newest, 0, 1, ALL), Some(repeats));
}

proptest! {
    /// Generations begin with arbitrary earlier states, commit steps and write some of their lines.
    /// The count in each header equals that of the audit. Some generations cannot write a count.
    #[test]
    fn count_in_each_header_equals_the_audit(
        generations in vec((any::<u16>(), any::<u16>(), 0_usize..6, 0_u64..6, 0_usize..12), 1..24),
        uncounted in vec(0_u8..4, 24),
    ) {
        let mut ledger = Ledger::default();
        for ((of, at, num_unknown, num_steps, num_written), uncounted) in
            generations.into_iter().zip(uncounted)
        {
            // Mostly the newest state, or one a little before it.
            let num_states = ledger.states.len().max(1);
            let back = if of % 3 == 0 { usize::from(of) / 3 % num_states } else { 0 };
            let state = ledger.states.get(num_states - 1 - back).cloned().unwrap_or_default();
            let cut = if at % 2 == 0 { usize::from(at) / 2 % (state.len() + 1) } else { 0 };
            let state = &state[..state.len() - cut];
            let repeats = ledger.form(state, num_unknown, num_steps, num_written);
            let file = ledger.files.last().unwrap();
            if file.lines.last().is_some_and(|line| line.generation == ledger.generation) {
                prop_assert_eq!(repeats.map(|it| it.total), Some(ledger.audited()));
            }
            if uncounted == 0 {
                ledger.forget_count();
            }
        }
    }
}
