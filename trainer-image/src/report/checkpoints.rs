//! What is reported about checkpoints and ledger. Trouble is said when it begins, when it changes and
//! when it is over, not every time that it is met.

use std::time::Duration;

use super::{Reporter, say, say_error};
use crate::checkpoint::News;

/// What is wrong now.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    checkpoint: Option<String>,
    ledger: Option<String>,
}

impl Reporter {
    /// A save has begun; training stood still for `stall`.
    pub fn checkpoint_begun(&self, stall: Duration) {
        self.metrics.checkpoints.begun(stall);
    }

    /// A save was due while another was in flight, for so long already that it is worth telling.
    pub fn checkpoint_skipped(&mut self, in_flight_for: Option<Duration>) {
        self.metrics.checkpoints.skipped();
        if in_flight_for.is_some() {
            let trouble = "the volume is too slow: a checkpoint is due while the last one is still being written";
            self.trouble_with_checkpoint(Some(trouble.to_owned()));
        }
    }

    /// So many other ranks could not write their part of a checkpoint.
    pub fn checkpoint_given_up(&mut self, num_failed: u64, world_size: u32) {
        self.metrics.checkpoints.failed();
        self.trouble_with_checkpoint(Some(format!(
            "{num_failed} of {world_size} ranks could not write their part; their logs say why"
        )));
    }

    /// What has come of a save.
    pub fn checkpoint(&mut self, news: &News) {
        match news {
            News::Saved {
                step,
                at,
                bytes,
                duration,
            } => {
                self.metrics.checkpoints.saved(*step, *bytes, *duration);
                self.progress.checkpoint_step = Some(*step);
                self.progress.checkpoint_at = Some(at.clone());
                self.trouble_with_checkpoint(None);
            }
            News::Found { step, at } => {
                self.metrics.checkpoints.found(*step);
                self.progress.checkpoint_step = Some(*step);
                self.progress.checkpoint_at = Some(at.clone());
            }
            News::Failed(reason) => {
                self.metrics.checkpoints.failed();
                self.trouble_with_checkpoint(Some(reason.clone()));
            }
            // It ends the process, which says why.
            News::Fenced(_) => {}
        }
    }

    /// Why ledger lines cannot be written; `None` while they can.
    pub fn ledger(&mut self, error: Option<String>) {
        if self.troubles.ledger != error {
            tell("ledger", error.as_deref());
            self.troubles.ledger = error;
            self.show_troubles();
        }
    }

    fn trouble_with_checkpoint(&mut self, error: Option<String>) {
        if self.troubles.checkpoint != error {
            tell("checkpoint", error.as_deref());
            self.troubles.checkpoint = error;
            self.show_troubles();
        }
    }

    fn show_troubles(&mut self) {
        let Troubles { checkpoint, ledger } = &self.troubles;
        self.progress.checkpoint_error = checkpoint.clone().or_else(|| ledger.clone());
    }
}

fn tell(what: &str, error: Option<&str>) {
    match error {
        Some(error) => say_error(&format!("{what}: {error}; training goes on")),
        None => say(&format!("{what}: written again")),
    }
}
