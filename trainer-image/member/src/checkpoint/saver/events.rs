//! Turns results of the writing thread into events.

use std::time::{Duration, Instant};

use roundhouse_elastic::saving::Stage;
use roundhouse_report::CheckpointReport;

use super::Saver;
use crate::checkpoint::writer::{Done, Incomplete, Task};
use crate::ledger::Unwritten;

/// What the writing thread has done.
#[derive(Clone, Debug, PartialEq)]
pub enum SaverEvent {
    /// A checkpoint was saved or found, or could not be saved.
    Report(CheckpointReport),
    /// A newer generation has written to the volume.
    Fenced(u64),
}

fn failed(reason: &impl ToString) -> SaverEvent {
    SaverEvent::Report(CheckpointReport::Failed(reason.to_string()))
}

/// Age of a manifest from its time.
fn age(saved_at: &str) -> Option<Duration> {
    let saved_at: jiff::Timestamp = saved_at.parse().ok()?;
    let ago = jiff::Timestamp::now().duration_since(saved_at);
    // The age can be negative, because clocks of two nodes differ.
    Some(Duration::try_from(ago).unwrap_or_default())
}

impl Saver {
    /// Returns the events since the last call.
    pub fn poll(&mut self) -> Vec<SaverEvent> {
        let done: Vec<Done> = self.results.try_iter().collect();
        done.into_iter()
            .filter_map(|done| self.event_of(done))
            .collect()
    }

    fn event_of(&mut self, done: Done) -> Option<SaverEvent> {
        match done {
            Done::Written {
                save,
                snapshot,
                result,
            } => {
                self.buffers.push(Some(snapshot));
                let flight = self.flight.as_mut().filter(|flight| flight.save == save)?;
                flight.stage = match result {
                    Ok(()) => Stage::Durable,
                    Err(_) => Stage::Failed,
                };
                result.err().map(|volume_error| failed(&volume_error))
            }
            // A newer generation has written. If this process is rank 0 of that generation too, it
            // tries again there.
            Done::Completed {
                save,
                result: Err(Incomplete::Ledger(Unwritten::Fenced(newer))),
            } => {
                let flight = self.flight.as_mut().filter(|flight| flight.save == save);
                if let Some(flight) = flight {
                    flight.is_completing = false;
                }
                Some(SaverEvent::Fenced(newer))
            }
            Done::Completed { save, result } => {
                let flight = self.flight.take_if(|flight| flight.save == save);
                if result.is_ok() {
                    let begun = flight
                        .as_ref()
                        .map_or_else(Instant::now, |flight| flight.begun);
                    self.unsaved = Some((Duration::ZERO, begun));
                }
                match result {
                    Ok((manifest, took)) => Some(SaverEvent::Report(CheckpointReport::Saved {
                        best: manifest
                            .scores
                            .and_then(|scores| self.has_completed(manifest.step, &scores)),
                        step: manifest.step,
                        bytes: manifest.tensors.num_bytes(),
                        duration: flight.map_or(took, |flight| flight.begun.elapsed()),
                        at: manifest.saved_at,
                    })),
                    Err(reason) => {
                        self.newest_step = None;
                        Some(failed(&reason))
                    }
                }
            }
            Done::Found(manifest, best) => {
                self.know_best(best);
                if let Some(ago) = age(&manifest.saved_at) {
                    self.was_saved(ago);
                }
                Some(SaverEvent::Report(CheckpointReport::Found {
                    step: manifest.step,
                    at: manifest.saved_at,
                    best,
                }))
            }
            Done::Fenced(newer) => Some(SaverEvent::Fenced(newer)),
            Done::Discarded => {
                self.is_discarding = false;
                None
            }
            Done::Panicked { task, words } => {
                self.forget(task);
                Some(failed(&words))
            }
            Done::NotTidied(volume_error) | Done::Refused(volume_error) => {
                Some(failed(&volume_error))
            }
            Done::Ended => {
                self.num_jobs -= 1;
                None
            }
        }
    }
    /// Treats a task as failed because the thread panicked in it.
    fn forget(&mut self, task: Task) {
        match task {
            Task::Write(save) => {
                // The memory of the snapshot is lost.
                self.buffers.push(None);
                if let Some(flight) = self.flight.as_mut().filter(|flight| flight.save == save) {
                    flight.stage = Stage::Failed;
                }
            }
            Task::Complete(save) => {
                self.flight.take_if(|flight| flight.save == save);
                self.newest_step = None;
            }
            Task::Discard => self.is_discarding = false,
            Task::Survey => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use roundhouse_contract::environment::CheckpointEnvironment;
    use roundhouse_elastic::{Digest, Head};
    use safetensors::Dtype;

    use super::*;
    use crate::checkpoint::Directory;
    use crate::failure::Failure;
    use crate::state::{Record, Snapshot, State, Table};

    /// A state whose copies cannot be read.
    #[derive(Debug)]
    struct Broken;

    impl Snapshot for Broken {
        fn bytes(&mut self) -> Result<&[u8], Failure> {
            panic!("no such byte")
        }
    }

    impl State for Broken {
        fn table(&self) -> Result<Table, Failure> {
            Ok(Table::from(vec![Record {
                name: "w".to_owned(),
                dtype: Dtype::U8,
                shape: vec![4],
                bytes: 4,
            }]))
        }

        fn copy_out(&self, _: Range<u64>, _: &mut [u8]) -> Result<(), Failure> {
            Ok(())
        }

        fn snapshot(
            &self,
            _: Range<u64>,
            _: Option<Box<dyn Snapshot>>,
        ) -> Result<Box<dyn Snapshot>, Failure> {
            Ok(Box::new(Self))
        }

        fn copy_in(&mut self, _: u64, _: &[u8]) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn panic_of_writer_is_reported_and_next_save_runs() {
        let folder = tempfile::tempdir().unwrap();
        let settings = CheckpointEnvironment {
            dir: folder.path().to_owned(),
            every_steps: None,
            every_seconds: None,
            keep: 2,
            best: None,
            job_uid: None,
            local: None,
        };
        let directory = Directory::new(settings.dir.clone());
        let mut saver = Saver::start(&settings, &directory, Broken.table().unwrap()).unwrap();
        for step in 1..=5 {
            let head = Head {
                generation: 1,
                step,
                hash: Digest::of(&[]),
            };
            saver.begin(&head, 1, 0, 1, &Broken).unwrap();
            let begun = Instant::now();
            let news = loop {
                let news = saver.poll();
                if !news.is_empty() || begun.elapsed() > Duration::from_secs(10) {
                    break news;
                }
                std::thread::yield_now();
            };
            let words = "the thread that writes checkpoints panicked: no such byte";
            assert_eq!(news, [failed(&words)]);
            assert_eq!(saver.stage(), Stage::Failed);
        }
    }
}
