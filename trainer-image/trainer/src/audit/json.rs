//! `roundhouse-train audit --json`: the result of an audit as one JSON object, for programs.

use roundhouse_elastic::audit::{Proof, Row};
use roundhouse_elastic::ledger::Start;
use roundhouse_member::checkpoint::VolumeError;
use roundhouse_member::checkpoint::job::run_of;
use serde::Serialize;

use super::{Damaged, Unproven};

/// The result of an audit that has proven the ledger.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names)] // The name in the JSON.
struct Proven {
    proven: bool,
    steps: u64,
    total_steps: u64,
    samples: u64,
    whole_epochs: u64,
    samples_of_next_epoch: u64,
    skipped_steps: u64,
    repeated_steps: u64,
    generations: Vec<Generation>,
    /// Damaged manifests and their errors. The ledger has the steps of these checkpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged_checkpoints: Vec<Unread>,
}

/// The result of an audit without a proof.
#[derive(Debug, Serialize)]
struct NotProven<'a> {
    proven: bool,
    reason: &'a str,
    /// The file or directory that could not be read, if that is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<Unread>,
}

/// A file or a directory that cannot be read.
#[derive(Debug, Serialize)]
struct Unread {
    path: String,
    error: String,
}

impl Unread {
    fn of(volume_error: &VolumeError) -> Self {
        Self {
            path: volume_error.path.display().to_string(),
            error: volume_error.reason.to_string(),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names)] // The name in the JSON.
struct Generation {
    run: u64,
    generation: u64,
    steps: Option<[u64; 2]>,
    epochs: Option<[u64; 2]>,
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<Repeated>,
}

/// Committed steps of a generation that a newer generation repeated.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Repeated {
    num_steps: u64,
    steps: [u64; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<By>,
}

/// The generation that repeated the steps, and the state from which it continued.
#[derive(Debug, Serialize)]
struct By {
    run: u64,
    generation: u64,
    #[serde(flatten)]
    start: Start,
}

pub(super) fn proven(proof: &Proof, damaged: &[Damaged]) -> String {
    let Proof {
        identity: _,
        rows,
        num_steps,
        num_samples,
        num_skipped,
        num_epochs,
        cursor,
    } = proof;
    let proven = Proven {
        proven: true,
        steps: *num_steps,
        total_steps: super::total_steps(proof),
        samples: *num_samples,
        whole_epochs: *num_epochs,
        samples_of_next_epoch: *cursor,
        skipped_steps: *num_skipped,
        repeated_steps: rows.iter().map(|row| row.num_superseded).sum(),
        generations: rows.iter().map(generation).collect(),
        damaged_checkpoints: damaged
            .iter()
            .map(|it| Unread::of(&it.volume_error))
            .collect(),
    };
    text(&proven)
}

pub(super) fn not_proven(reason: &Unproven) -> String {
    text(&NotProven {
        proven: false,
        reason: &reason.to_string(),
        unread: match reason {
            Unproven::Unread(volume_error) => Some(Unread::of(volume_error)),
            _ => None,
        },
    })
}

fn generation(row: &Row) -> Generation {
    let Row {
        generation,
        steps,
        epochs,
        num_samples,
        num_superseded,
        superseded,
        superseded_by,
    } = *row;
    let pair = |(first, last)| [first, last];
    let by = superseded_by.map(|(generation, start)| {
        let (run, generation) = run_of(generation);
        By {
            run,
            generation,
            start: Start {
                repeats: None,
                ..start
            },
        }
    });
    let (run, generation) = run_of(generation);
    Generation {
        run,
        generation,
        steps: steps.map(pair),
        epochs: epochs.map(pair),
        samples: num_samples,
        repeated: superseded.map(|span| Repeated {
            num_steps: num_superseded,
            steps: pair(span),
            by,
        }),
    }
}

/// Serializes numbers and texts, which cannot fail.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
