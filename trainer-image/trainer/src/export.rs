//! `roundhouse-train export`: joins the files of a checkpoint, one per rank, into one safetensors
//! file.
//!
//! The export streams the bytes and verifies their hashes, as training does when it continues from
//! a checkpoint. So it never exports a damaged checkpoint, and it keeps only a few pieces in
//! memory.

use std::io;
use std::path::{Path, PathBuf};

use roundhouse_contract::ExitCode;
use roundhouse_elastic::CheckpointId;
use roundhouse_member::checkpoint::load::{self, Message};
use roundhouse_member::checkpoint::{Directory, Manifest, VolumeError, best_file};
use roundhouse_report::{say, say_error};

mod output;
mod selection;

use output::Output;
use selection::Selection;

/// Selects the checkpoint to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest complete checkpoint.
    Newest,
    /// The checkpoint that `best.json` names.
    Best,
    /// The checkpoint with this directory name.
    Named(String),
}

/// Why nothing was exported. Each message contains advice.
#[derive(Debug, thiserror::Error)]
enum NotExported {
    #[error("{}: holds no complete checkpoint{advice}", path.display())]
    NoCheckpoint { path: PathBuf, advice: String },
    #[error(
        "{}: no checkpoint is named as the best one; that needs checkpoint.best and an evaluation; without --best the \
         newest one is exported", .0.display()
    )]
    NoBest(PathBuf),
    #[error("{name} is no checkpoint; there are: {there}")]
    NoSuchName { name: String, there: String },
    #[error(
        "{path} holds no weights under model.*, but {names}; --all exports everything", path = path.display()
    )]
    NoWeights { path: PathBuf, names: String },
    #[error(
        "{0}; if the job still trains, it may have deleted the checkpoint meanwhile: try again, or name another one \
         with --checkpoint"
    )]
    Unusable(#[from] VolumeError),
    #[error("{}: {source}", path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Defect(String),
}

impl NotExported {
    const fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoCheckpoint { .. }
            | Self::NoBest(_)
            | Self::NoSuchName { .. }
            | Self::NoWeights { .. } => ExitCode::ConfigInvalid,
            Self::Unusable(_) => ExitCode::DataInvalid,
            Self::Output { .. } => ExitCode::VolumeFailed,
            Self::Defect(_) => ExitCode::Internal,
        }
    }
}

/// Exports a checkpoint below the directory of a job, and prints what it has written. `all`: with
/// the optimizer's state.
#[must_use]
pub fn run(dir: &Path, out: &Path, which: &Which, all: bool) -> ExitCode {
    match export(&Directory::new(dir.to_owned()), out, which, all) {
        Ok(words) => {
            say(&words);
            ExitCode::Done
        }
        Err(reason) => {
            say_error(&format!("nothing was exported: {reason}"));
            reason.exit_code()
        }
    }
}

fn export(
    directory: &Directory,
    out: &Path,
    which: &Which,
    all: bool,
) -> Result<String, NotExported> {
    let manifest = find(directory, which)?;
    let path = directory.checkpoint(manifest.id());
    let selection = Selection::of(&manifest.tensors, manifest.step, all);
    let selection = selection.map_err(|names| NotExported::NoWeights {
        path: path.clone(),
        names,
    })?;
    let failed = |source| NotExported::Output {
        path: out.to_owned(),
        source,
    };
    let output = Output::create(out, &selection, &manifest).map_err(failed)?;
    let (step, generation) = (manifest.step, manifest.generation);
    let messages = load::read(directory, manifest);
    for message in messages.map_err(|failure| NotExported::Defect(failure.to_string()))? {
        match message {
            Message::Bytes(bytes) => {
                for (offset, run) in bytes.runs() {
                    output.write(offset, run).map_err(failed)?;
                }
            }
            Message::Damaged(volume_error) => return Err(volume_error.into()),
            Message::Whole => {
                let num_bytes = output.finish().map_err(failed)?;
                return Ok(format!(
                    "exported step {step} of generation {generation}: {}, {num_bytes} bytes, from {} to {}",
                    selection.words(),
                    path.display(),
                    out.display()
                ));
            }
        }
    }
    let words = "the thread that reads a checkpoint has ended";
    Err(NotExported::Defect(words.to_owned()))
}

fn find(directory: &Directory, which: &Which) -> Result<Manifest, NotExported> {
    let path = directory.checkpoints();
    let ids = directory.list().map_err(VolumeError::with(&path))?;
    let usable = |id: CheckpointId| load::usable(directory, id);
    let named = |name: &str| {
        let id = CheckpointId::parse(name).filter(|id| ids.contains(id));
        id.ok_or_else(|| NotExported::NoSuchName {
            name: name.to_owned(),
            there: ids
                .iter()
                .map(CheckpointId::name)
                .collect::<Vec<_>>()
                .join(", "),
        })
    };
    match which {
        _ if ids.is_empty() => {}
        Which::Named(name) => {
            let last = Path::new(name).file_name().and_then(|name| name.to_str());
            return Ok(usable(named(last.unwrap_or(name))?)?);
        }
        Which::Best => {
            let best = best_file::read(directory);
            let best = best.ok_or_else(|| NotExported::NoBest(directory.root().to_owned()))?;
            let last = best.checkpoint.rsplit('/').next();
            return Ok(usable(named(last.unwrap_or_default())?)?);
        }
        Which::Newest => {
            let mut first = None;
            for id in &ids {
                match usable(*id) {
                    Ok(manifest) => return Ok(manifest),
                    Err(volume_error) => {
                        say_error(&format!("skipping a checkpoint: {volume_error}"));
                        first.get_or_insert(volume_error);
                    }
                }
            }
            if let Some(volume_error) = first {
                return Err(volume_error.into());
            }
        }
    }
    let state = directory.root().join("state");
    let advice = if state.join("checkpoints").is_dir() {
        format!("; did you mean {}?", state.display())
    } else {
        "; give the directory that holds checkpoints/, which is NAMESPACE/JOB on the volume"
            .to_owned()
    };
    Err(NotExported::NoCheckpoint { path, advice })
}
