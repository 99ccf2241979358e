//! The thread that writes: training continues meanwhile, however slow the volume is.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use roundhouse_contract::BestCheckpoint;
use roundhouse_elastic::CheckpointId;

use super::complete::Retention;
use super::error::{Reason, steadily};
use super::manifest::Manifest;
use super::shard::{self, Part};
use super::{Directory, VolumeError, complete, probe};
use crate::ledger::{Progress, Unwritten};
use crate::state::{Snapshot, Table};

/// What the thread is to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Write a part.
    Write {
        /// Number of the save.
        save: u64,
        /// The checkpoint.
        id: CheckpointId,
        /// The generation that writes it.
        writer: u64,
        /// Who writes.
        rank: u32,
        /// Of how many.
        world_size: u32,
        /// The part; it comes back.
        snapshot: Box<dyn Snapshot>,
    },
    /// Complete a checkpoint, once the ledger is durable up to it, and delete old ones.
    Complete {
        /// Number of the save.
        save: u64,
        /// The generation in which it is completed.
        generation: u64,
        /// Lacks the parts.
        manifest: Box<Manifest>,
        /// The generation that began to write them.
        writer: u64,
        /// The ledger.
        ledger: Progress,
    },
    /// Remove a checkpoint that this generation will not complete.
    Discard(CheckpointId, u64),
    /// Look for the newest checkpoint, and whether a newer generation than this has written.
    Survey(u64),
}

/// What the thread has done.
#[derive(Debug)]
pub(super) enum Done {
    /// A part is durable, or why it is not.
    Written {
        /// Number of the save.
        save: u64,
        /// The part's memory.
        snapshot: Box<dyn Snapshot>,
        /// Why it is not.
        result: Result<(), VolumeError>,
    },
    /// A checkpoint is complete, or why it is not.
    Completed {
        /// Number of the save.
        save: u64,
        /// The manifest, and how long it took.
        result: Result<(Box<Manifest>, Duration), Incomplete>,
    },
    /// A checkpoint that will not be completed is removed.
    Discarded,
    /// There are checkpoints; this is the newest whose manifest can be read, and the best one if it is kept.
    Found(Box<Manifest>, Option<BestCheckpoint>),
    /// A newer generation has written.
    Fenced(u64),
    /// Old checkpoints could not be deleted.
    NotTidied(VolumeError),
    /// The file system cannot do what a save needs.
    Refused(VolumeError),
    /// The thread panicked over a job; it takes the next one.
    Panicked {
        /// The job.
        task: Task,
        /// What it said.
        words: String,
    },
}

/// A job, without what it consists of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// [`Job::Write`] of a save.
    Write(u64),
    /// [`Job::Complete`] of a save.
    Complete(u64),
    /// [`Job::Discard`].
    Discard,
    /// [`Job::Survey`].
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

/// Why a checkpoint whose parts are durable is not complete.
#[derive(Debug, thiserror::Error)]
pub(super) enum Incomplete {
    /// The ledger does not reach its step.
    #[error(transparent)]
    Ledger(#[from] Unwritten),
    /// It cannot be given its name.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl Incomplete {
    /// Whether a newer generation has written. The parts stay: if this process is its rank 0, it completes
    /// the checkpoint there.
    const fn is_fenced(&self) -> bool {
        matches!(self, Self::Ledger(Unwritten::Fenced(_)))
    }
}

/// Starts the thread. It ends when nobody can give it a job any more.
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
                    // Without a word the volume would seem to be silent.
                    let words = words_of(&*panic);
                    thread.tell(Done::Panicked { task, words });
                }
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
    /// Whether the file system was tried.
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
                self.tell(Done::Written {
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
                    // Before it is told: the next save may begin at once.
                    complete::make_room(&self.directory, id, writer, self.retention);
                }
                let result = result.map(|manifest| (Box::new(manifest), started.elapsed()));
                self.tell(Done::Completed { save, result });
                if is_complete
                    && let Err(reason) = complete::delete_old(&self.directory, id, self.retention)
                {
                    self.tell(Done::NotTidied(reason));
                }
            }
            Job::Discard(id, writer) => {
                complete::make_room(&self.directory, id, writer, self.retention);
                self.tell(Done::Discarded);
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
            Ok(Some(newer)) => return self.tell(Done::Fenced(newer)),
            Ok(None) => {}
            Err(volume_error) => self.tell(Done::NotTidied(volume_error)),
        }
        if let Err(reason) = self.look_around() {
            self.tell(Done::NotTidied(reason));
        }
        if !self.has_probed.replace(true)
            && let Some(refusal) = probe::probe(&self.directory)
        {
            self.tell(Done::Refused(refusal));
        }
    }

    /// Tells of the newest checkpoint and of the best one. A process that was killed may have completed the best
    /// checkpoint and not have named it.
    fn look_around(&self) -> Result<(), VolumeError> {
        let found = complete::manifests(&self.directory)?;
        let best = complete::best_of(&found, self.retention.best);
        let named = complete::name_best(&self.directory, best.as_ref());
        let newest = found.into_iter().find_map(|(_, manifest)| manifest);
        if let Some(newest) = newest {
            let best = best.map(|(_, best)| best);
            self.tell(Done::Found(Box::new(newest), best));
        }
        named
    }

    /// A newer generation that has written.
    fn newer(&self, generation: u64) -> Result<Option<u64>, VolumeError> {
        let newest = steadily(|| self.directory.newest_generation())?;
        Ok(Some(newest).filter(|newest| *newest > generation))
    }

    /// The saver may be gone, and then nobody needs to know.
    fn tell(&self, done: Done) {
        let _ = self.done.send(done);
    }
}
