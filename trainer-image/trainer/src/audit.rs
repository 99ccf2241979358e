//! `roundhouse-train audit`: reads a ledger, checks it, and prints the proof or the defect.

use std::path::{Path, PathBuf};

use roundhouse_contract::ExitCode;
use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::audit::{self, Finding, Proof, Row};
use roundhouse_elastic::ledger::Source;
use roundhouse_member::checkpoint::job::run_of;
use roundhouse_member::checkpoint::{Directory, VolumeError};
use roundhouse_report::{say, say_error};

pub mod compare;
mod json;
mod read;

use read::{Damaged, Record};

/// Why a ledger does not prove that each sample was used once per epoch.
#[derive(Debug, thiserror::Error)]
enum Unproven {
    /// The ledger or the checkpoints cannot be read, so the audit has no result.
    #[error("cannot be read: {0}")]
    Unread(#[from] VolumeError),
    /// The weights of a checkpoint cannot be read.
    #[error("{0}")]
    NoWeights(String),
    /// A checkpoint is damaged, and the ledger does not have its step.
    #[error("the ledger does not have step {} of generation {}, whose checkpoint is damaged: {}", .0.id.step, .0.id.generation, .0.volume_error)]
    Lost(Damaged),
    /// Lines of the ledger contradict each other.
    #[error(transparent)]
    Finding(#[from] Finding),
    /// Two ledgers have no step in common.
    #[error("one has {} steps and the other {}: there is no step to compare", .0[0], .0[1])]
    NothingInCommon([u64; 2]),
    /// The directory has no ledger. With the reason or a hint.
    #[error("{}: {}{}", .0.display(), Finding::Empty, .1)]
    Empty(PathBuf, String),
}

/// Audits the ledger below a checkpoint directory and prints the result as text or as JSON.
#[must_use]
pub fn run(dir: &Path, as_json: bool) -> ExitCode {
    let audited = audited(&Directory::new(dir.to_owned()));
    match audited {
        Ok((proof, damaged)) if as_json => {
            say(&json::proven(&proof, &damaged));
            ExitCode::Done
        }
        Err(reason) if as_json => {
            say(&json::not_proven(&reason));
            reason.exit_code()
        }
        Ok((proof, damaged)) => {
            say(&table(&proof.rows));
            for words in proof.rows.iter().filter_map(lost) {
                say(&words);
            }
            for Damaged { volume_error, .. } in damaged {
                say(&format!(
                    "a checkpoint is damaged, and the ledger has its step: {volume_error}"
                ));
            }
            say(&verdict(&proof));
            ExitCode::Done
        }
        Err(reason) => {
            say_error(&format!("not proven: {reason}"));
            reason.exit_code()
        }
    }
}

impl Unproven {
    /// An unreadable volume is no verdict on the training, so it has another exit code.
    const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Unread(_) => ExitCode::VolumeFailed,
            _ => ExitCode::DataInvalid,
        }
    }
}

/// The proof, and the damaged checkpoints whose steps the ledger has.
fn audited(directory: &Directory) -> Result<(Proof, Vec<Damaged>), Unproven> {
    let Record {
        files,
        heads,
        damaged,
    } = read::record(directory)?;
    let (known, lost): (Vec<_>, Vec<_>) = damaged.into_iter().partition(|it| it.is_in(&files));
    let proof = audit::audit(files, &heads)?;
    match lost.into_iter().next() {
        Some(lost) => Err(Unproven::Lost(lost)),
        None => Ok((proof, known)),
    }
}

const HEADS: [&str; 6] = [
    "run",
    "generation",
    "steps",
    "epochs",
    "samples",
    "superseded lines",
];

fn table(rows: &[Row]) -> String {
    let span = |span: Option<(u64, u64)>| {
        span.map_or_else(|| "-".to_owned(), |(first, last)| format!("{first}-{last}"))
    };
    let cells = rows.iter().map(|row| {
        let (run, generation) = run_of(row.generation);
        [
            run.to_string(),
            generation.to_string(),
            span(row.steps),
            span(row.epochs),
            row.num_samples.to_string(),
            row.num_superseded.to_string(),
        ]
    });
    let lines: Vec<_> = std::iter::once(HEADS.map(str::to_owned))
        .chain(cells)
        .collect();
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let aligned = |line: &[String; HEADS.len()]| {
        let cells = line.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        cells.join("  ")
    };
    lines.iter().map(aligned).collect::<Vec<_>>().join("\n")
}

/// Describes the steps that a generation committed and that a newer generation repeated.
fn lost(row: &Row) -> Option<String> {
    let (first, last) = row.superseded?;
    let (run, generation) = run_of(row.generation);
    let cause = row.superseded_by.map_or_else(
        || "a newer generation continued from an older state".to_owned(),
        |(generation, start)| {
            let (run, generation) = run_of(generation);
            let step = start.head.step;
            let state = match start.source {
                Source::Initial => "began with the initial weights".to_owned(),
                Source::Checkpoint => {
                    let name = CheckpointId::of(&start.head).name();
                    format!("continued from checkpoint {name}")
                }
                Source::Rank(rank) => {
                    format!("continued from the state of rank {rank} after step {step}")
                }
            };
            format!("generation {generation} (run {run}) {state}")
        },
    );
    Some(format!(
        "{} of generation {generation} (run {run}) lost and done again: steps {first}-{last}; {cause}",
        counted(row.num_superseded)
    ))
}

fn counted(num_steps: u64) -> String {
    match num_steps {
        1 => "1 committed step".to_owned(),
        num => format!("{num} committed steps"),
    }
}

/// Number of steps of the whole training. If the batch size follows the number of workers, the
/// number of steps is unknown before the end.
const fn total_steps(proof: &Proof) -> u64 {
    match proof.identity.reference_replicas {
        None => proof.identity.total_steps,
        Some(_) => proof.num_steps,
    }
}

fn verdict(proof: &Proof) -> String {
    let Proof {
        identity,
        rows,
        num_steps,
        num_samples,
        num_skipped,
        num_epochs,
        cursor,
    } = proof;
    let total = total_steps(proof);
    let skipped = match num_skipped {
        0 => String::new(),
        1 => "; 1 step was not finite and changed no weights".to_owned(),
        num => format!("; {num} steps were not finite and changed no weights"),
    };
    let repeated = match rows.iter().map(|row| row.num_superseded).sum() {
        0 => String::new(),
        num => format!("; but lost and done again: {}", counted(num)),
    };
    let steps = if *num_steps > total {
        format!("{num_steps} steps, more than the {total} that are asked for now,")
    } else {
        format!("{num_steps} of {total} steps")
    };
    format!(
        "proven: {steps} used {num_samples} samples, each exactly once per epoch and in \
         order: {num_epochs} whole epochs of {} and {cursor} samples of the next{skipped}{repeated}",
        identity.num_samples
    )
}

#[cfg(test)]
mod tests;
