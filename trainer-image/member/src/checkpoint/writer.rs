//! The thread that writes checkpoints. Training continues meanwhile, however slow the volume is.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use roundhouse_contract::BestCheckpoint;
use roundhouse_elastic::CheckpointId;

use super::complete::Retention;
use super::error::{Reason, steadily};
use super::manifest::{Manifest, PieceRecord};
use super::shard::{self, Part};
use super::{Directory, VolumeError, complete, probe};
use crate::ledger::{Progress, Unwritten};
use crate::state::{Snapshot, Table};

/// An order for the thread.
#[derive(Debug)]
pub(super) enum Job {
    /// Write a part of a checkpoint.
    Write {
        save: u64,
        id: CheckpointId,
        /// Generation that writes the part.
        writer: u64,
        rank: u32,
        /// Number of ranks that write.
        world_size: u32,
        pieces: Vec<PieceRecord>,
        /// The bytes of the pieces; returned in [`Done::Written`].
        snapshot: Box<dyn Snapshot>,
    },
    /// Complete a checkpoint once the ledger is durable up to its step, then delete old ones.
    Complete {
        save: u64,
        /// Generation in which the checkpoint is completed.
        generation: u64,
        /// The manifest without its parts.
        manifest: Box<Manifest>,
        /// Generation that began to write the parts.
        writer: u64,
        ledger: Progress,
    },
    /// Remove an incomplete checkpoint that this generation will not complete.
    Discard(CheckpointId, u64),
    /// Find the newest checkpoint, and check whether a generation newer than this one has written.
    Survey(u64),
}

/// Result of an order.
#[derive(Debug)]
pub(super) enum Done {
    /// A part is durable or could not be written.
    Written {
        save: u64,
        /// Memory of the part, for reuse.
        snapshot: Box<dyn Snapshot>,
        result: Result<(), VolumeError>,
    },
    /// A checkpoint is complete or could not be completed.
    Completed {
        save: u64,
        /// The manifest, and how long completing took.
        result: Result<(Box<Manifest>, Duration), Incomplete>,
    },
    /// The remains of a checkpoint are removed.
    Discarded,
    /// The newest checkpoint with a readable manifest, and the best one if it is kept.
    Found(Box<Manifest>, Option<BestCheckpoint>),
    /// A newer generation has written.
    Fenced(u64),
    /// Old checkpoints could not be deleted.
    NotTidied(VolumeError),
    /// The file system does not support what a save needs.
    Refused(VolumeError),
    /// The thread panicked during an order and continues with the next one.
    Panicked {
        task: Task,
        /// Message of the panic.
        words: String,
    },
    /// The job has ended, even if it failed or panicked. It is its last result.
    Ended,
}

/// The kind of a [`Job`], which is known after the job was consumed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Write(u64),
    Complete(u64),
    Discard,
    Survey,
}

impl From<&Job> for Task {
    fn from(job: &Job) -> Self {
        match job {
            Job::Write { save, .. } => Self::Write(*save),
            Job::Complete { save, .. } => Self::Complete(*save),
            Job::Discard(..) => Self::Discard,
            Job::Survey(_) => Self::Survey,
        }
    }
}

/// Why a checkpoint with durable parts is not complete.
#[derive(Debug, thiserror::Error)]
pub(super) enum Incomplete {
    /// The ledger is not durable up to its step.
    #[error(transparent)]
    Ledger(#[from] Unwritten),
    /// It could not get its name.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl Incomplete {
    /// Whether a newer generation has written. The parts stay: if this process is rank 0 of that
    /// generation, it completes the checkpoint there.
    const fn is_fenced(&self) -> bool {
        matches!(self, Self::Ledger(Unwritten::Fenced(_)))
    }
}

/// Starts the thread, which ends when the sender of jobs is dropped.
pub(super) fn start(
    directory: Directory,
    table: Table,
    retention: Retention,
) -> std::io::Result<(Sender<Job>, Receiver<Done>)> {
    let (jobs, todo) = channel();
    let (done, results) = channel();
    let thread = Thread {
        directory,
        table,
        retention,
        done,
        has_probed: Cell::new(false),
    };
    std::thread::Builder::new()
        .name("checkpoints".to_owned())
        .spawn(move || {
            for job in todo {
                let task = Task::from(&job);
                let done = catch_unwind(AssertUnwindSafe(|| thread.run(job)));
                if let Err(panic) = done {
                    // Without this message the volume would seem to hang.
                    let words = words_of(&*panic);
                    thread.send(Done::Panicked { task, words });
                }
                thread.send(Done::Ended);
            }
        })?;
    Ok((jobs, results))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no words".to_owned());
    format!("the thread that writes checkpoints panicked: {text}")
}

struct Thread {
    directory: Directory,
    table: Table,
    retention: Retention,
    done: Sender<Done>,
    /// Whether the operations of the file system were tried.
    has_probed: Cell<bool>,
}

impl Thread {
    fn run(&self, job: Job) {
        match job {
            Job::Write {
                save,
                id,
                writer,
                rank,
                world_size,
                pieces,
                mut snapshot,
            } => {
                let directory = self.directory.partial(id, writer);
                let written = match snapshot.bytes() {
                    Ok(bytes) => {
                        let part = Part {
                            id,
                            rank,
                            world_size,
                            table: &self.table,
                            pieces: &pieces,
                            bytes,
                            io_watch: self.directory.io_watch(),
                        };
                        shard::write(&directory, &part)
                    }
                    Err(failure) => Err(VolumeError {
                        path: directory,
                        reason: Reason::NotCopied(failure.to_string()),
                    }),
                };
                self.send(Done::Written {
                    save,
                    snapshot,
                    result: written,
                });
            }
            Job::Complete {
                save,
                generation,
                manifest,
                writer,
                ledger,
            } => {
                let started = Instant::now();
                let id = manifest.id();
                let result = self.complete(generation, *manifest, writer, &ledger);
                let is_complete = result.is_ok();
                if result.as_ref().is_err_and(|error| !error.is_fenced()) {
                    // First make room: the next save may begin as soon as the result is sent.
                    complete::make_room(&self.directory, id, writer, self.retention);
                }
                let result = result.map(|manifest| (Box::new(manifest), started.elapsed()));
                self.send(Done::Completed { save, result });
                if is_complete
                    && let Err(reason) = complete::delete_old(&self.directory, id, self.retention)
                {
                    self.send(Done::NotTidied(reason));
                }
            }
            Job::Discard(id, writer) => {
                complete::make_room(&self.directory, id, writer, self.retention);
                self.send(Done::Discarded);
            }
            Job::Survey(generation) => self.survey(generation),
        }
    }

    fn complete(
        &self,
        generation: u64,
        manifest: Manifest,
        writer: u64,
        ledger: &Progress,
    ) -> Result<Manifest, Incomplete> {
        if let Some(newer) = self.newer(generation)? {
            return Err(Incomplete::Ledger(Unwritten::Fenced(newer)));
        }
        ledger.wait_for(manifest.step)?;
        Ok(complete::complete(&self.directory, manifest, writer)?)
    }

    fn survey(&self, generation: u64) {
        match self.newer(generation) {
            Ok(Some(newer)) => return self.send(Done::Fenced(newer)),
            Ok(None) => {}
            Err(volume_error) => self.send(Done::NotTidied(volume_error)),
        }
        if let Err(reason) = self.report_checkpoints() {
            self.send(Done::NotTidied(reason));
        }
        if !self.has_probed.replace(true)
            && let Some(refusal) = probe::probe(&self.directory)
        {
            self.send(Done::Refused(refusal));
        }
    }

    /// Reports the newest and the best checkpoint. Names the best one, because a process may have
    /// been killed after completing it and before naming it.
    fn report_checkpoints(&self) -> Result<(), VolumeError> {
        let found = complete::manifests(&self.directory)?;
        let best = complete::best_of(&found, self.retention.best);
        let named = complete::name_best(&self.directory, best.as_ref());
        let newest = found.into_iter().find_map(|(_, manifest)| manifest);
        if let Some(newest) = newest {
            let best = best.map(|(_, best)| best);
            self.send(Done::Found(Box::new(newest), best));
        }
        named
    }

    /// Returns a newer generation that has written.
    fn newer(&self, generation: u64) -> Result<Option<u64>, VolumeError> {
        let newest = steadily(|| self.directory.newest_generation())?;
        Ok(Some(newest).filter(|newest| *newest > generation))
    }

    /// Sends a result, unless the saver is gone.
    fn send(&self, done: Done) {
        let _ = self.done.send(done);
    }
}
