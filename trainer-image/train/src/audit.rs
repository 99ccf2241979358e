//! `roundhouse-train audit`: reads a ledger, has it proven, and prints the proof.

use std::path::{Path, PathBuf};

use roundhouse_contract::ExitCode;
use roundhouse_elastic::audit::{self, File, Finding, Proof, Row};
use roundhouse_elastic::ledger::{self, Header, Source};
use roundhouse_elastic::{CheckpointId, Head};
use roundhouse_member::checkpoint::job::run_of;
use roundhouse_member::checkpoint::manifest::Tail;
use roundhouse_member::checkpoint::{Directory, Manifest, Trouble};
use roundhouse_member::report::{say, say_error};

pub mod compare;
mod json;

/// Why a ledger proves nothing.
#[derive(Debug, thiserror::Error)]
enum Unproven {
    /// It cannot be read.
    #[error(transparent)]
    Volume(#[from] Trouble),
    /// A checkpoint cannot be read.
    #[error("{0}")]
    Unread(String),
    /// Its lines do not hold together.
    #[error(transparent)]
    Finding(#[from] Finding),
    /// Two ledgers have no step in common.
    #[error("one has {} steps and the other {}: there is no step to compare", .0[0], .0[1])]
    NothingInCommon([u64; 2]),
    /// There is none.
    #[error("{}: {}{}", .0.display(), Finding::Empty, .1)]
    Empty(PathBuf, String),
}

/// Audits the ledger below a checkpoint directory and says what came of it, in words or as JSON.
#[must_use]
pub fn run(dir: &Path, as_json: bool) -> ExitCode {
    let proof = read(&Directory::new(dir.to_owned()))
        .and_then(|(files, heads)| audit::audit(files, &heads).map_err(Unproven::from));
    match proof {
        Ok(proof) if as_json => {
            say(&json::proven(&proof));
            ExitCode::Done
        }
        Err(reason) if as_json => {
            say(&json::not_proven(&reason.to_string()));
            ExitCode::DataInvalid
        }
        Ok(proof) => {
            say(&table(&proof.rows));
            for words in proof.rows.iter().filter_map(lost) {
                say(&words);
            }
            say(&verdict(&proof));
            ExitCode::Done
        }
        Err(reason) => {
            say_error(&format!("not proven: {reason}"));
            ExitCode::DataInvalid
        }
    }
}

/// Where the ledger is, if somebody gives the directory of a whole run.
fn advice(dir: &Path) -> String {
    let state = dir.join("state");
    if state.join("ledger").is_dir() {
        format!("; did you mean {}?", state.display())
    } else {
        String::new()
    }
}

/// The files of the ledger, and where it was at each checkpoint.
fn read(directory: &Directory) -> Result<(Vec<File>, Vec<Head>), Unproven> {
    let path = directory.ledger();
    let generations = directory.ledgers().map_err(Trouble::with(&path))?;
    let mut files = Vec::new();
    for generation in generations {
        let path = path.join(ledger::file_name(generation));
        let text = std::fs::read_to_string(&path).map_err(Trouble::with(&path))?;
        files.extend(File::parse(generation, &text)?);
    }
    let checkpoints = directory.list().unwrap_or_default();
    // One that cannot be read is never continued from; loading says so.
    let manifest = |id| Manifest::read(&directory.checkpoint(id)).ok();
    let manifests: Vec<Manifest> = checkpoints.into_iter().filter_map(manifest).collect();
    // The newest last, as a file of the ledger is.
    files.extend(manifests.iter().rev().filter_map(tail));
    if files.is_empty() {
        return Err(Unproven::Empty(path, advice(directory.root())));
    }
    let heads = manifests.iter().map(|manifest| manifest.ledger).collect();
    Ok((files, heads))
}

/// The end of the ledger that the last process saved in its checkpoint when it left alone. No file has it before a generation
/// continues from the checkpoint, so it counts as a file of the generation that committed it.
fn tail(manifest: &Manifest) -> Option<File> {
    let Tail { after, lines } = manifest.tail.as_ref()?;
    let header = Header {
        generation: lines.last()?.generation,
        previous: Some(*after).filter(|head| head.step > 0),
        course: manifest.training.course,
        start: None,
    };
    Some(File {
        header,
        lines: lines.clone(),
    })
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

/// What a generation committed and a newer one did not continue from, in words.
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

/// Steps of the whole training. If the batch follows the workers, their number is not known before the end.
const fn total_steps(proof: &Proof) -> u64 {
    match proof.terms.reference_replicas {
        None => proof.terms.total_steps,
        Some(_) => proof.num_steps,
    }
}

fn verdict(proof: &Proof) -> String {
    let Proof {
        terms,
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
    format!(
        "proven: {num_steps} of {total} steps used {num_samples} samples, each exactly once per epoch and in \
         order: {num_epochs} whole epochs of {} and {cursor} samples of the next{skipped}{repeated}",
        terms.num_samples
    )
}

#[cfg(test)]
mod tests;
