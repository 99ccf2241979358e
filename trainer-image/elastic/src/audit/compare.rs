//! Compares two trainings bit for bit: the samples of each step, and the losses.
//!
//! The hashes of a ledger also cover the generations, which differ between two histories of one
//! training. So this module hashes the lines again without them.

use super::{File, Finding, counted_lines};
use crate::digest::Digest;
use crate::ledger::{LedgerIdentity, Line};

/// Whether two trainings committed the same steps, as far as both have come.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// All steps that both trainings have are equal.
    Equal {
        /// The lines of the committed steps of each training, in order.
        histories: [Vec<Line>; 2],
        /// Digest of the common steps: of their numbers, samples and losses.
        digest: Digest,
    },
    /// The trainings have different data, batches or seeds.
    OtherTraining,
    /// The first step that differs.
    Differs {
        /// Number of the step, from 1.
        step: u64,
        /// The line of the step in each training.
        lines: [Line; 2],
    },
}

/// Compares two ledgers. Like the audit, it follows each one from its newest generation backwards.
///
/// # Errors
/// Returns the first inconsistency of either ledger.
pub fn compare(left: Vec<File>, right: Vec<File>) -> Result<Comparison, Finding> {
    let (left_identity, left) = history(left)?;
    let (right_identity, right) = history(right)?;
    if !left_identity.fit(&right_identity) {
        return Ok(Comparison::OtherTraining);
    }
    let mut digest = left_identity.genesis();
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

/// Returns the fields that must be equal in both trainings.
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

/// Returns the lines of the chain, in order.
fn history(mut files: Vec<File>) -> Result<(LedgerIdentity, Vec<Line>), Finding> {
    files.sort_by_key(|file| file.header.generation);
    let lengths = counted_lines(&files)?;
    let identity = files.last().map(|file| file.header.identity);
    let identity = identity.ok_or(Finding::Empty)?;
    let counted = files.into_iter().zip(lengths);
    let lines = counted.flat_map(|(file, length)| file.lines.into_iter().take(length));
    Ok((identity, lines.collect()))
}
