//! Reports about checkpoints and ledger. A problem is logged when it begins, when it changes and
//! when it ends, not every time that it occurs.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::{BestCheckpoint, HeldCopy, Phase};
use roundhouse_elastic::io_timeout::Delay;

use super::{Reporter, say, say_error};

/// What became of a checkpoint, or which one the volume already has.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointReport {
    /// A checkpoint is complete.
    Saved {
        /// Number of committed steps that it holds.
        step: u64,
        /// When it was complete, RFC 3339.
        at: String,
        /// Size of its tensors.
        bytes: u64,
        /// From its step's end until it had its name.
        duration: Duration,
        /// Its score, if it is the best checkpoint now.
        best: Option<BestCheckpoint>,
    },
    /// The newest checkpoint that the volume has when a generation begins.
    Found {
        /// Number of committed steps that it holds.
        step: u64,
        /// When it was saved, RFC 3339.
        at: String,
        /// The best checkpoint of the volume.
        best: Option<BestCheckpoint>,
    },
    /// A checkpoint could not be saved, for this reason.
    Failed(String),
}

/// The problems that are reported now.
#[derive(Debug, Default)]
pub(super) struct Problems {
    checkpoint: Option<String>,
    delayed: Option<(Option<u64>, Delay)>,
    delay: Option<String>,
    ledger: Option<String>,
    copy: Option<String>,
    holder: Option<String>,
}

impl Reporter {
    /// Reports that a save has begun; training stopped for `stall`.
    pub fn checkpoint_begun(&self, stall: Duration) {
        self.metrics.checkpoints.begun(stall);
    }

    /// Counts a save that was due while another was in flight.
    pub fn checkpoint_skipped(&self) {
        self.metrics.checkpoints.skipped();
    }

    /// Reports a delay of the save in flight, or its end. `step` is that of the save, unless a save
    /// of an earlier generation still occupies the volume.
    pub fn checkpoint_delayed(
        &mut self,
        dir: &Path,
        step: Option<u64>,
        world_size: u32,
        delay: Option<Delay>,
    ) {
        let known = delay.map(|delay| (step, delay));
        if self.problems.delayed == known {
            return;
        }
        self.problems.delayed = known;
        let words =
            delay.map(|delay| format!("{}: {}", dir.display(), sentence(step, world_size, delay)));
        self.log("checkpoint", words.as_deref(), "the volume works again");
        self.problems.delay = words;
        self.show_problem();
    }

    /// Why checkpoints cannot be written, as far as this rank knows.
    #[must_use]
    pub fn checkpoint_problem(&self) -> String {
        let known = self.progress.checkpoint_error.clone();
        known
            .unwrap_or_else(|| "another rank could not write its part; its log says why".to_owned())
    }

    /// Sets the total progress of the volume.
    pub fn volume_moves(&mut self, moves: u64) {
        self.volume_moves = moves;
        self.report_moves();
    }

    /// Adds bytes of the state that have moved between ranks. For the agent's watchdog they count
    /// like bytes of the volume.
    pub fn state_moves(&mut self, num_bytes: u64) {
        self.num_state_bytes += num_bytes;
        self.metrics.set_state_bytes(self.num_state_bytes);
        self.report_moves();
    }

    /// Sets the number of checkpoint bytes that this process has read.
    pub fn checkpoint_read(&mut self, num_bytes: u64) {
        self.metrics.checkpoints.read(num_bytes);
    }

    pub(super) fn report_moves(&mut self) {
        let moves = self.volume_moves + self.num_state_bytes + self.num_waits;
        if self.status.volume_moves != moves && Instant::now() >= self.status_due {
            self.status.volume_moves = moves;
            self.write_status();
        }
    }

    /// Reports that other ranks could not write their part of a checkpoint.
    pub fn checkpoint_given_up(&mut self, num_failed: u64, world_size: u32) {
        self.metrics.checkpoints.failed();
        self.set_checkpoint_problem(Some(format!(
            "{num_failed} of {world_size} ranks could not write their part; their logs say why"
        )));
    }

    /// Reports the result of a save, or the newest checkpoint on the volume.
    pub fn checkpoint(&mut self, report: &CheckpointReport) {
        match report {
            CheckpointReport::Saved {
                step,
                at,
                bytes,
                duration,
                best,
            } => {
                self.metrics.checkpoints.saved(*step, *bytes, *duration, at);
                self.progress.checkpoint_step = Some(*step);
                self.progress.checkpoint_at = Some(at.clone());
                self.set_checkpoint_problem(None);
                if let Some(BestCheckpoint {
                    step,
                    metric,
                    value,
                }) = best
                {
                    self.know_best(*best);
                    say(&format!(
                        "the checkpoint of step {step} is the best one so far ({metric} {value:.4}) and is kept"
                    ));
                }
                // A leaving process commits no step that would write the status.
                self.write_status();
            }
            CheckpointReport::Found { step, at, best } => {
                self.know_best(*best);
                self.metrics.checkpoints.found(*step, at);
                self.progress.checkpoint_step = Some(*step);
                self.progress.checkpoint_at = Some(at.clone());
            }
            CheckpointReport::Failed(reason) => {
                self.metrics.checkpoints.failed();
                self.set_checkpoint_problem(Some(reason.clone()));
            }
        }
    }

    fn know_best(&mut self, best: Option<BestCheckpoint>) {
        if let Some(best) = &best {
            self.metrics.checkpoints.best(best);
        }
        self.progress.best_checkpoint = best;
    }

    /// Sets the last durable step of the ledger.
    pub fn ledger_is_durable(&self, step: u64) {
        self.metrics.checkpoints.ledger_is_durable(step);
    }

    /// Reports that this process keeps local copies, and whether other pods should hold them, too.
    /// There are none yet.
    pub fn keeps_copies(&self, in_other_pods: bool) {
        self.metrics.checkpoints.has_copy(0);
        if in_other_pods {
            self.metrics.checkpoints.has_second_copy(0);
        }
    }

    /// Reports the newest state of which each part is in another pod, too.
    pub fn has_second_copy(&self, step: u64) {
        self.metrics.checkpoints.has_second_copy(step);
    }

    /// Reports that a local copy has begun; training stopped for `stall`.
    pub fn copy_begun(&self, stall: Duration) {
        self.metrics.checkpoints.copy_begun(stall);
    }

    /// Reports the local copy that this process has read.
    pub fn has_copy(&mut self, step: u64) {
        self.metrics.checkpoints.has_copy(step);
        self.copied_step = Some(step);
    }

    /// Reports that this process has a complete copy of its part of this step's state.
    pub fn copied(&mut self, step: u64, duration: Duration) {
        self.metrics.checkpoints.has_copy(step);
        self.metrics.checkpoints.copied(duration);
        self.copied_step = Some(step);
        self.has_failed_copy = false;
    }

    /// Reports that no rank of this worker writes a copy, and how many of them could not write
    /// their part of the last one.
    /// `are_in_two_pods`: each part is in another pod, too.
    pub fn copy_ended(&mut self, num_failed: u64, are_in_two_pods: bool) {
        if num_failed == 0 {
            self.progress.local_step = self.copied_step;
            self.set_copy_problem(None);
            if let Some(step) = self.copied_step.filter(|_| are_in_two_pods) {
                self.has_second_copy(step);
            }
        } else if !self.has_failed_copy {
            self.set_copy_problem(Some(format!(
                "the parts of {num_failed} of the processes of this worker are missing: read the logs of its pods for the reason"
            )));
        }
    }

    /// Counts a local copy that was due while another was being written.
    pub fn copy_skipped(&self) {
        self.metrics.checkpoints.copy_skipped();
    }

    /// Reports why there is no local copy.
    pub fn copy_failed(&mut self, reason: &str) {
        self.metrics.checkpoints.copy_failed();
        self.has_failed_copy = true;
        self.set_copy_problem(Some(reason.to_owned()));
    }

    /// Reports the newest copy that the holder of this worker has; `None` if there is no holder, or
    /// if it has no whole copy. The error says why it is not known.
    pub fn holder_has(&mut self, stored: Result<Option<HeldCopy>, String>) {
        let (held, error) = match stored {
            Ok(held) => {
                self.has_second_copy(held.as_ref().map_or(0, |held| held.step));
                (held, None)
            }
            // Its last copy may still be there.
            Err(error) => (None, Some(error)),
        };
        self.progress.held_copy = held;
        if self.problems.holder != error {
            self.log("second copy", error.as_deref(), "written again");
            self.problems.holder = error;
            self.show_copy_problem();
        }
    }

    fn set_copy_problem(&mut self, error: Option<String>) {
        if self.problems.copy != error {
            self.log("local copy", error.as_deref(), "written again");
            self.problems.copy = error;
            self.show_copy_problem();
        }
    }

    fn show_copy_problem(&mut self) {
        let Problems { copy, holder, .. } = &self.problems;
        self.progress.local_error = copy.as_ref().or(holder.as_ref()).cloned();
        self.write_status();
    }

    /// Reports why ledger lines cannot be written; `None` while they can.
    pub fn ledger(&mut self, error: Option<String>) {
        if self.problems.ledger != error {
            self.log("ledger", error.as_deref(), "written again");
            self.problems.ledger = error;
            self.show_problem();
        }
    }

    fn set_checkpoint_problem(&mut self, error: Option<String>) {
        if self.problems.checkpoint != error {
            self.log("checkpoint", error.as_deref(), "written again");
            self.problems.checkpoint = error;
            self.show_problem();
        }
    }

    fn show_problem(&mut self) {
        let Problems {
            checkpoint,
            delayed: _,
            delay,
            ledger,
            copy: _,
            holder: _,
        } = &self.problems;
        let first = delay.as_ref().or(checkpoint.as_ref()).or(ledger.as_ref());
        self.progress.checkpoint_error = first.cloned();
        // A process that waits for its last save commits no step that would write the status.
        self.write_status();
    }

    fn log(&self, what: &str, error: Option<&str>, over: &str) {
        let consequence = if self.status.phase == Phase::Saving {
            "waiting for it"
        } else {
            "training continues"
        };
        match error {
            Some(error) => say_error(&format!("{what}: {error}; {consequence}")),
            None => say(&format!("{what}: {over}")),
        }
    }
}

fn sentence(step: Option<u64>, world_size: u32, delay: Delay) -> String {
    let what = step.map_or_else(
        || "an earlier checkpoint".to_owned(),
        |step| format!("the checkpoint of step {step}"),
    );
    match delay {
        Delay::Stuck(num_stuck, span) => {
            let seconds = span.as_secs();
            format!(
                "the volume has accepted no byte of {what} from {num_stuck} of {world_size} ranks for {seconds} s"
            )
        }
        Delay::Slow(span) => {
            let seconds = span.as_secs();
            format!(
                "the volume is slow: {what} is not written after {seconds} s, and others are skipped"
            )
        }
    }
}
