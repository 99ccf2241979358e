//! How a process ends, in its own words.

use roundhouse_contract::{Phase, Reason, TerminationMessage};

use super::{Reporter, say_error};
use crate::failure::Failure;

impl Reporter {
    /// Training is complete.
    pub fn done(&mut self) {
        self.enter(Phase::Done);
        self.say_as_rank_zero("training is complete");
    }

    /// Says why the process ends, on stderr and in the failure file.
    pub fn fail(&self, failure: &Failure) {
        say_error(&failure.to_string());
        self.write_failure(&self.last_words(failure));
    }

    /// What [`Self::fail`] would write.
    #[must_use]
    pub fn last_words(&self, failure: &Failure) -> TerminationMessage {
        let generation = match failure {
            // What the next generation has to be above of.
            Failure::Fenced { newer, .. } => *newer,
            _ => self.status.generation,
        };
        TerminationMessage {
            reason: Reason::of(failure.exit_code()),
            rank: self.status.rank,
            generation,
            step: self.status.step,
            message: failure.to_string(),
            progress: None,
        }
    }

    fn write_failure(&self, words: &TerminationMessage) {
        if let Some(files) = &self.files {
            files.write_failure(words);
        }
    }
}
