//! Proves from a ledger that every sample was used exactly once per epoch, in order.
//!
//! The audit follows the chain backwards from the last line of the newest generation that committed
//! a step. Lines that the chain does not pass belong to superseded branches. Their hashes must be
//! correct too, so that only steps that were really committed count as lost. A generation that
//! committed nothing supersedes nothing, because its state is not newer than the one with which it
//! began. Then the audit checks the lines forwards: hashes, steps, cursors, and for each epoch that
//! the order of the samples contains no sample twice.

use crate::ledger::{Head, LedgerIdentity, Line};

mod batches;
pub mod compare;
pub mod file;
pub mod finding;
mod orders;
mod rows;
#[cfg(test)]
mod tests;

use batches::Batches;
pub use compare::{Comparison, compare};
pub use file::File;
pub use finding::Finding;
pub use rows::Row;

/// A proof that the ledger is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Data, batch, seed and length of the training.
    pub identity: LedgerIdentity,
    /// One row per generation, in the order of generations.
    pub rows: Vec<Row>,
    /// Number of committed steps, without superseded ones.
    pub num_steps: u64,
    /// Number of samples of these steps, over all epochs.
    pub num_samples: u64,
    /// Number of steps that were committed without an update.
    pub num_skipped: u64,
    /// Number of complete epochs.
    pub num_epochs: u64,
    /// Number of samples of the next epoch that were used.
    pub cursor: u64,
}

/// Audits the files of a ledger, in any order. `anchors` are the ledger heads of saved checkpoints;
/// the ledger must contain each of them.
///
/// # Errors
/// Returns the first inconsistency of the ledger.
pub fn audit(mut files: Vec<File>, anchors: &[Head]) -> Result<Proof, Finding> {
    files.sort_by_key(|file| file.header.generation);
    let lengths = counted_lines(&files)?;
    let Some(identity) = files.last().map(|file| file.header.identity) else {
        return Err(Finding::Empty);
    };
    let counted = files.iter().zip(&lengths);
    let lines: Vec<&Line> = counted
        .flat_map(|(file, length)| &file.lines[..*length])
        .collect();
    check_data_schedule(&lines, &identity)?;
    check_orders(&lines, &identity)?;
    check_anchors(&files, &identity, anchors)?;
    let rows = rows::of(&files, &lengths);
    let (num_epochs, cursor) = lines.last().map_or((0, 0), |line| {
        let is_complete = line.end == identity.num_samples;
        (
            line.epoch + u64::from(is_complete),
            if is_complete { 0 } else { line.end },
        )
    });
    Ok(Proof {
        identity,
        num_steps: lines.len() as u64,
        num_samples: rows.iter().map(|row| row.num_samples).sum(),
        num_skipped: lines.iter().filter(|line| line.skipped).count() as u64,
        rows,
        num_epochs,
        cursor,
    })
}

/// Returns how many lines of each file the chain passes, found from its end backwards.
fn counted_lines(files: &[File]) -> Result<Vec<usize>, Finding> {
    files.iter().try_for_each(check_hashes)?;
    let mut lengths = vec![0; files.len()];
    let Some(mut at) = end_of_chain(files) else {
        return Ok(lengths);
    };
    let mut length = files[at].lines.len();
    loop {
        let file = &files[at];
        lengths[at] = length;
        let Some(previous) = file.header.previous else {
            return Ok(lengths);
        };
        let newer = file.header.generation;
        if !file
            .header
            .identity
            .fit(&files[files.len() - 1].header.identity)
        {
            return Err(Finding::OtherTraining { generation: newer });
        }
        let older = files[..at].iter().enumerate().rev();
        let found = older.filter_map(|(index, file)| Some((index, file.position_of(&previous)?)));
        (at, length) = found
            .map(|(index, place)| (index, place + 1))
            .next()
            .ok_or(Finding::Gap {
                generation: newer,
                step: previous.step,
            })?;
    }
}

/// Returns the file with the end of the chain: its last line was committed by the newest
/// generation. Of several files that end with the same line it is the newest.
fn end_of_chain(files: &[File]) -> Option<usize> {
    let newest = |at: &usize| {
        let Head {
            generation, step, ..
        } = files[*at].head();
        (generation, step, *at)
    };
    (0..files.len()).max_by_key(newest)
}

/// Checks superseded lines too: damage may be the reason why the chain does not pass them.
fn check_hashes(file: &File) -> Result<(), Finding> {
    let Some((number, line)) = file.broken() else {
        return Ok(());
    };
    Err(Finding::BrokenHash {
        generation: file.header.generation,
        // The header is line 1.
        number: number + 1,
        step: line.step,
    })
}

/// Checks that each line continues where the line before it ended, so that no step or sample
/// is missing or repeated.
fn check_data_schedule(lines: &[&Line], identity: &LedgerIdentity) -> Result<(), Finding> {
    let (mut step, mut generation, mut epoch, mut cursor) = (0, 0, 0, 0);
    let mut batches = Batches::new(identity);
    for (index, line) in lines.iter().enumerate() {
        let at = line.generation;
        if line.step != step + 1 {
            return Err(Finding::StepOutOfOrder {
                generation: at,
                step: line.step,
                expected: step + 1,
            });
        }
        if line.generation < generation {
            return Err(Finding::GenerationOutOfOrder {
                generation: at,
                step: line.step,
            });
        }
        if cursor == identity.num_samples {
            (epoch, cursor) = (epoch + 1, 0);
        }
        let end = batches.end(line, cursor, lines.get(index + 1).copied());
        let is_next = (line.epoch, line.start, line.end) == (epoch, cursor, end);
        if !is_next {
            let expected = (epoch, cursor, end);
            let found = (line.epoch, line.start, line.end);
            return Err(Finding::samples(line.step, at, found, expected));
        }
        (step, generation, cursor) = (line.step, line.generation, line.end);
    }
    Ok(())
}

/// Checks that in each epoch the used places are different samples.
fn check_orders(lines: &[&Line], identity: &LedgerIdentity) -> Result<(), Finding> {
    for epoch in lines.chunk_by(|left, right| left.epoch == right.epoch) {
        let Some(last) = epoch.last() else { continue };
        orders::check(identity, last.epoch, last.end, orders::MAX_BYTES)?;
    }
    Ok(())
}

fn check_anchors(
    files: &[File],
    identity: &LedgerIdentity,
    anchors: &[Head],
) -> Result<(), Finding> {
    let start = Head::start(identity);
    for anchor in anchors.iter().filter(|anchor| **anchor != start) {
        if !files.iter().any(|file| file.position_of(anchor).is_some()) {
            return Err(Finding::UnknownCheckpoint {
                generation: anchor.generation,
                step: anchor.step,
            });
        }
    }
    Ok(())
}
