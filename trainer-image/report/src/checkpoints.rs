//! What is reported about checkpoints and ledger. VolumeError is said when it begins, when it changes and
//! when it is over, not every time that it is met.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::{BestCheckpoint, Phase};
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

/// What is wrong now.
#[derive(Debug, Default)]
pub(super) struct Problems {
    checkpoint: Option<String>,
    delayed: Option<(Option<u64>, Delay)>,
    delay: Option<String>,
    ledger: Option<String>,
}

impl Reporter {
    /// A save has begun; training stood still for `stall`.
    pub fn checkpoint_begun(&self, stall: Duration) {
        self.metrics.checkpoints.begun(stall);
    }

    /// A save was due while another was in flight.
    pub fn checkpoint_skipped(&self) {
        self.metrics.checkpoints.skipped();
    }

    /// What is to be known of the save in flight, if it takes too long: that of a step, unless it is one of
    /// an earlier generation that still holds up the volume.
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
        self.tell(
            "checkpoint",
            words.as_deref(),
            "the volume is waited for no longer",
        );
        self.problems.delay = words;
        self.show_problem();
    }

    /// What keeps checkpoints from being written, as far as this rank knows.
    #[must_use]
    pub fn checkpoint_problem(&self) -> String {
        let known = self.progress.checkpoint_error.clone();
        known
            .unwrap_or_else(|| "another rank could not write its part; its log says why".to_owned())
    }

    /// Bytes have gone to the volume or come from it, so many in all.
    pub fn volume_moves(&mut self, moves: u64) {
        self.volume_moves = moves;
        self.report_moves();
    }

    /// So many more bytes of the state have moved between ranks. For the agent's watchdog they count as bytes of
    /// the volume: something moves.
    pub fn state_moves(&mut self, num_bytes: u64) {
        self.num_state_bytes += num_bytes;
        self.metrics.set_state_bytes(self.num_state_bytes);
        self.report_moves();
    }

    /// Bytes of checkpoints that this process has read so far.
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

    /// So many other ranks could not write their part of a checkpoint.
    pub fn checkpoint_given_up(&mut self, num_failed: u64, world_size: u32) {
        self.metrics.checkpoints.failed();
        self.set_checkpoint_problem(Some(format!(
            "{num_failed} of {world_size} ranks could not write their part; their logs say why"
        )));
    }

    /// What has come of a save.
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
                        "the checkpoint of step {step} is the best one so far ({metric} {value:.4}), and is kept"
                    ));
                }
                // Whoever leaves commits no step that would bring it out.
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

    /// Lines of the ledger are durable up to this step.
    pub fn ledger_is_durable(&self, step: u64) {
        self.metrics.checkpoints.ledger_is_durable(step);
    }

    /// Why ledger lines cannot be written; `None` while they can.
    pub fn ledger(&mut self, error: Option<String>) {
        if self.problems.ledger != error {
            self.tell("ledger", error.as_deref(), "written again");
            self.problems.ledger = error;
            self.show_problem();
        }
    }

    fn set_checkpoint_problem(&mut self, error: Option<String>) {
        if self.problems.checkpoint != error {
            self.tell("checkpoint", error.as_deref(), "written again");
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
        } = &self.problems;
        let first = delay.as_ref().or(checkpoint.as_ref()).or(ledger.as_ref());
        self.progress.checkpoint_error = first.cloned();
        // Who waits for the last save commits no step that would bring it out.
        self.write_status();
    }

    fn tell(&self, what: &str, error: Option<&str>, over: &str) {
        let so = if self.status.phase == Phase::Saving {
            "it is waited for"
        } else {
            "training continues"
        };
        match error {
            Some(error) => say_error(&format!("{what}: {error}; {so}")),
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
                "the volume has taken nothing of {what} from {num_stuck} of {world_size} ranks for {seconds} s"
            )
        }
        Delay::Slow(span) => {
            let seconds = span.as_secs();
            format!(
                "the volume is slow: {what} is not written after {seconds} s, and others are left out"
            )
        }
    }
}
