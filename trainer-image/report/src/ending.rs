//! How a process ends, in its own words.

use roundhouse_contract::{ExitCode, Phase, Reason, TerminationMessage};

use super::{Reporter, say_error};

/// How a process ends: its exit code and its last words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The code that it exits with.
    pub code: ExitCode,
    /// Why, in one sentence.
    pub words: String,
    /// A newer generation that has superseded this process, if one has: the next one must be above it.
    pub newer: Option<u64>,
}

impl Reporter {
    /// Training is complete.
    pub fn done(&mut self) {
        self.finish_events();
        self.enter(Phase::Done);
        self.say_as_rank_zero("training is complete");
    }

    /// Says why the process ends, on stderr and in the failure file.
    pub fn fail(&self, ending: &Ending) {
        self.finish_events();
        say_error(&ending.words);
        self.write_failure(&self.last_words(ending));
    }

    /// What [`Self::fail`] would write.
    #[must_use]
    pub fn last_words(&self, ending: &Ending) -> TerminationMessage {
        let Ending { code, words, newer } = ending;
        TerminationMessage {
            reason: Reason::of(*code),
            rank: self.status.rank,
            // The next generation has to be above a newer one.
            generation: newer.unwrap_or(self.status.generation),
            step: self.status.step,
            message: words.clone(),
            progress: None,
        }
    }

    fn write_failure(&self, words: &TerminationMessage) {
        if let Some(files) = &self.files {
            files.write_failure(words);
        }
    }
}
