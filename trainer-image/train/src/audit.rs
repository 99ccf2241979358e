//! `roundhouse-train audit`: reads a ledger, has it proven, and prints the proof.

use std::path::{Path, PathBuf};

use roundhouse_contract::ExitCode;
use roundhouse_elastic::audit::{self, File, Finding, Proof, Row};
use roundhouse_elastic::{Head, ledger};
use roundhouse_member::checkpoint::job::run_of;
use roundhouse_member::checkpoint::{Directory, Manifest, Trouble};
use roundhouse_member::report::{say, say_error};

pub mod compare;

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

/// Audits the ledger below a checkpoint directory and says what came of it.
#[must_use]
pub fn run(dir: &Path) -> ExitCode {
    let proof = read(&Directory::new(dir.to_owned()))
        .and_then(|(files, heads)| audit::audit(files, &heads).map_err(Unproven::from));
    match proof {
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
    if files.is_empty() {
        return Err(Unproven::Empty(path, advice(directory.root())));
    }
    let checkpoints = directory.list().unwrap_or_default();
    // One that cannot be read is never gone on with; loading says so.
    let manifest = |id| Manifest::read(&directory.checkpoint(id)).ok();
    let manifests = checkpoints.into_iter().filter_map(manifest);
    Ok((files, manifests.map(|manifest| manifest.ledger).collect()))
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
    Some(format!(
        "{} of generation {generation} (run {run}) lost and done again: steps {first}-{last}; a newer generation \
         continued from an older state",
        counted(row.num_superseded)
    ))
}

fn counted(num_steps: u64) -> String {
    match num_steps {
        1 => "1 committed step".to_owned(),
        num => format!("{num} committed steps"),
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
    // If the batch follows the workers nobody knows how many steps there will be.
    let total = match terms.reference_replicas {
        None => terms.total_steps,
        Some(_) => *num_steps,
    };
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
mod tests {
    use super::*;

    #[test]
    fn steps_that_were_done_again_are_named() {
        let row = |num_superseded, superseded| Row {
            generation: 3,
            steps: Some((1, 100)),
            epochs: None,
            num_samples: 6_400,
            num_superseded,
            superseded,
        };
        assert_eq!(lost(&row(0, None)), None);
        let text = lost(&row(4_048, Some((536, 4_583)))).unwrap();
        assert!(
            text.starts_with("4048 committed steps of generation 3"),
            "{text}"
        );
        assert!(text.contains("done again: steps 536-4583"), "{text}");
        let text = lost(&row(1, Some((7, 7)))).unwrap();
        assert!(text.starts_with("1 committed step of"), "{text}");
    }

    #[test]
    fn columns_are_aligned() {
        let row = |generation, steps| Row {
            generation,
            steps,
            epochs: steps.map(|_| (0, 12)),
            num_samples: 6_400,
            num_superseded: 0,
            superseded: None,
        };
        let text = table(&[row(1, Some((1, 100))), row(12, None), row(1_000_002, None)]);
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(widths.len(), 4);
        let numbers = |line: &str| -> Vec<String> {
            line.split_whitespace().take(2).map(str::to_owned).collect()
        };
        let last = text.lines().last().unwrap();
        assert_eq!(
            numbers(last),
            ["2", "2"],
            "the second generation of the second job in the directory"
        );
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
        assert!(text.contains("1-100") && text.contains("0-12"), "{text}");
    }
}
