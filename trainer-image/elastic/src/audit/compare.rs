//! Whether two trainings are the same, bit for bit: the same samples in every step, and the same losses.
//!
//! The hashes of a ledger cover the generations, too, which differ between two histories of one training. So the
//! lines are hashed here once more without them.

use super::{File, Finding, counted_lines};
use crate::digest::Digest;
use crate::ledger::{Line, RunIdentity};

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// All steps that both have are equal.
    Equal {
        /// The lines of the steps that each has committed, in order.
        histories: [Vec<Line>; 2],
        /// Digest of the steps that both have: of their numbers, samples and losses.
        digest: Digest,
    },
    /// They are trainings of other data, batch or seed.
    OtherRun,
    /// A step is the first that differs.
    Differs {
        /// Its number.
        step: u64,
        /// It in both.
        lines: [Line; 2],
    },
}

/// Compares two ledgers. Each is followed from its newest generation backwards, as the audit does.
///
/// # Errors
/// One of them does not hold together.
pub fn compare(left: Vec<File>, right: Vec<File>) -> Result<Comparison, Finding> {
    let (left_run, left) = history(left)?;
    let (right_run, right) = history(right)?;
    if !left_run.fit(&right_run) {
        return Ok(Comparison::OtherRun);
    }
    let mut digest = left_run.genesis();
    for (own, other) in left.iter().zip(&right) {
        if content(own) != content(other) {
            return Ok(Comparison::Differs {
                step: own.step,
                lines: [*own, *other],
            });
        }
        let numbers = content(own).map(u64::to_le_bytes);
        let parts: Vec<&[u8]> = std::iter::once(digest.bytes().as_slice())
            .chain(numbers.iter().map(<[u8; 8]>::as_slice))
            .collect();
        digest = Digest::of(&parts);
    }
    Ok(Comparison::Equal {
        histories: [left, right],
        digest,
    })
}

/// What two trainings must have in common in a step.
fn content(line: &Line) -> [u64; 6] {
    let Line {
        step,
        generation: _,
        epoch,
        start,
        end,
        loss,
        skipped,
        hash: _,
    } = line;
    [
        *step,
        *epoch,
        *start,
        *end,
        loss.to_bits(),
        u64::from(*skipped),
    ]
}

/// The lines that count, in order.
fn history(mut files: Vec<File>) -> Result<(RunIdentity, Vec<Line>), Finding> {
    files.sort_by_key(|file| file.header.generation);
    let lengths = counted_lines(&files)?;
    let run = files.last().map(|file| file.header.run);
    let run = run.ok_or(Finding::Empty)?;
    let counted = files.into_iter().zip(lengths);
    let lines = counted.flat_map(|(file, length)| file.lines.into_iter().take(length));
    Ok((run, lines.collect()))
}
