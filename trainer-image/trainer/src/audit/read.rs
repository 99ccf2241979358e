//! Reads what an audit needs: the checkpoints' manifests and the ledger.

use std::path::Path;

use roundhouse_elastic::audit::File;
use roundhouse_elastic::ledger::{self, Header};
use roundhouse_elastic::{CheckpointId, Head};
use roundhouse_member::checkpoint::manifest::{self, Tail};
use roundhouse_member::checkpoint::{Directory, Manifest, Reason, VolumeError};

use super::Unproven;

/// Everything that an audit reads from the volume.
#[derive(Debug)]
pub(super) struct Record {
    /// The files of the ledger, and the last lines of it that checkpoints contain.
    pub(super) files: Vec<File>,
    /// The last ledger line of each checkpoint.
    pub(super) heads: Vec<Head>,
    /// Checkpoints whose manifest is damaged and names no ledger line.
    pub(super) damaged: Vec<Damaged>,
}

/// A checkpoint whose manifest is damaged. Training does not continue from such a checkpoint.
#[derive(Debug)]
pub(super) struct Damaged {
    /// The checkpoint's name, which contains its last step.
    pub(super) id: CheckpointId,
    pub(super) volume_error: VolumeError,
}

impl Damaged {
    /// Whether a file has the line of the checkpoint's last step. Earlier versions named a
    /// checkpoint by the generation that saved it, not by the one that committed its step.
    pub(super) fn is_in(&self, files: &[File]) -> bool {
        let CheckpointId { generation, step } = self.id;
        let mut lines = files.iter().flat_map(|file| &file.lines);
        step == 0 || lines.any(|line| line.step == step && line.generation <= generation)
    }
}

/// Reads the checkpoints before the ledger. The line of a checkpoint is durable before the
/// checkpoint has its name, so a ledger that is read later contains it, even while the job trains.
/// If the job deletes a checkpoint with the last ledger lines meanwhile, a newer generation has
/// written these lines to its own file.
pub(super) fn record(directory: &Directory) -> Result<Record, Unproven> {
    let (mut ends, mut heads, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for id in directory.steady_list()? {
        match Manifest::read_steadily(&directory.checkpoint(id)) {
            Ok(None) => {}
            Ok(Some(manifest)) => {
                let end = tail(&manifest);
                if let Some((number, _)) = end.as_ref().and_then(File::broken) {
                    let path = directory.checkpoint(id).join(manifest::FILE);
                    let volume_error = VolumeError::with(&path)(Reason::LedgerLine(number));
                    damaged.push(Damaged { id, volume_error });
                } else {
                    ends.extend(end);
                    heads.push(manifest.ledger);
                }
            }
            Err(volume_error) if volume_error.is_of_the_volume() => return Err(volume_error.into()),
            Err(volume_error) => damaged.push(Damaged { id, volume_error }),
        }
    }
    let path = directory.ledger();
    let generations = directory.ledgers().map_err(VolumeError::with(&path))?;
    let mut files = Vec::new();
    for generation in generations {
        let path = path.join(ledger::file_name(generation));
        let text = std::fs::read_to_string(&path).map_err(VolumeError::with(&path))?;
        files.extend(File::parse(generation, &text)?);
    }
    // The newest file must be last: its end is the end of the ledger.
    files.extend(ends.into_iter().rev());
    if files.is_empty() {
        return Err(Unproven::Empty(path, advice(directory.root())));
    }
    Ok(Record {
        files,
        heads,
        damaged,
    })
}

/// Suggests the state directory if the user gave the directory of a whole run.
fn advice(dir: &Path) -> String {
    let state = dir.join("state");
    if state.join("ledger").is_dir() {
        format!("; did you mean {}?", state.display())
    } else {
        String::new()
    }
}

/// The last ledger lines, which the last process of a job saved in its checkpoint when it left
/// alone. No ledger file has these lines before a generation continues from the checkpoint. The
/// audit treats them as a file of the generation that committed them.
fn tail(manifest: &Manifest) -> Option<File> {
    let Tail { after, lines } = manifest.tail.as_ref()?;
    let header = Header {
        generation: lines.last()?.generation,
        previous: Some(*after).filter(|head| head.step > 0),
        identity: manifest.training.ledger,
        start: None,
    };
    Some(File {
        header,
        lines: lines.clone(),
    })
}
