//! Reads what an audit needs: the checkpoints' manifests and the ledger.

use std::path::Path;

use roundhouse_elastic::audit::File;
use roundhouse_elastic::ledger::{self, Header};
use roundhouse_elastic::{CheckpointId, Head};
use roundhouse_member::checkpoint::manifest::{self, Tail};
use roundhouse_member::checkpoint::{Directory, Manifest, Reason, Trouble};

use super::Unproven;

/// What is on the volume.
#[derive(Debug)]
pub(super) struct Record {
    /// The files of the ledger, and the ends of it that are in checkpoints.
    pub(super) files: Vec<File>,
    /// Where the ledger was at each checkpoint.
    pub(super) heads: Vec<Head>,
    /// Checkpoints whose manifests do not say that.
    pub(super) damaged: Vec<Damaged>,
}

/// A checkpoint whose manifest is damaged. If it is no manifest, training does not continue from it.
#[derive(Debug)]
pub(super) struct Damaged {
    /// Its name, which is that of its last step.
    pub(super) id: CheckpointId,
    /// What is wrong with its manifest.
    pub(super) trouble: Trouble,
}

impl Damaged {
    /// Whether a file has the line of its last step. Earlier versions named a checkpoint by the generation that saved it.
    pub(super) fn is_in(&self, files: &[File]) -> bool {
        let CheckpointId { generation, step } = self.id;
        let mut lines = files.iter().flat_map(|file| &file.lines);
        step == 0 || lines.any(|line| line.step == step && line.generation <= generation)
    }
}

/// Reads the checkpoints first: the line of each is durable before the checkpoint has its name, so a ledger that is read
/// afterwards has it, however long the job trains on between the two. If a checkpoint with the end of the ledger is
/// deleted meanwhile, a newer generation has written that end to its file.
pub(super) fn record(directory: &Directory) -> Result<Record, Unproven> {
    let (mut ends, mut heads, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for id in directory.steady_list()? {
        match Manifest::read_steadily(&directory.checkpoint(id)) {
            Ok(None) => {}
            Ok(Some(manifest)) => {
                let end = tail(&manifest);
                if let Some((number, _)) = end.as_ref().and_then(File::broken) {
                    let path = directory.checkpoint(id).join(manifest::FILE);
                    let trouble = Trouble::with(&path)(Reason::LedgerLine(number));
                    damaged.push(Damaged { id, trouble });
                } else {
                    ends.extend(end);
                    heads.push(manifest.ledger);
                }
            }
            Err(trouble) if trouble.is_of_the_volume() => return Err(trouble.into()),
            Err(trouble) => damaged.push(Damaged { id, trouble }),
        }
    }
    let path = directory.ledger();
    let generations = directory.ledgers().map_err(Trouble::with(&path))?;
    let mut files = Vec::new();
    for generation in generations {
        let path = path.join(ledger::file_name(generation));
        let text = std::fs::read_to_string(&path).map_err(Trouble::with(&path))?;
        files.extend(File::parse(generation, &text)?);
    }
    // The newest last, as a file of the ledger is.
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

/// Where the ledger is, if somebody gives the directory of a whole run.
fn advice(dir: &Path) -> String {
    let state = dir.join("state");
    if state.join("ledger").is_dir() {
        format!("; did you mean {}?", state.display())
    } else {
        String::new()
    }
}

/// The end of the ledger that the last process saved in its checkpoint when it left alone. No file has it before a generation
/// continues from the checkpoint, so it counts as a file of the generation that committed it.
fn tail(manifest: &Manifest) -> Option<File> {
    let Tail { after, lines } = manifest.tail.as_ref()?;
    let header = Header {
        generation: lines.last()?.generation,
        previous: Some(*after).filter(|head| head.step > 0),
        run: manifest.training.run,
        start: None,
    };
    Some(File {
        header,
        lines: lines.clone(),
    })
}
