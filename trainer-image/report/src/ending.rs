//! The end of a process and its last words.

use roundhouse_contract::{ExitCode, Phase, Reason, TerminationMessage};

use super::{Reporter, say_error};

/// How a process ends: its exit code and its last words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The exit code of the process.
    pub code: ExitCode,
    /// The reason in one sentence.
    pub words: String,
    /// A newer generation that has superseded this process, if one has. The next generation must be
    /// newer.
    pub newer: Option<u64>,
}

impl Reporter {
    /// Reports that training is complete.
    pub fn done(&mut self) {
        self.finish_events();
        self.enter(Phase::Done);
        self.say_as_rank_zero("training is complete");
    }

    /// Reports why the process ends, on stderr and in the failure file.
    pub fn fail(&self, ending: &Ending) {
        self.finish_events();
        say_error(&ending.words);
        self.write_failure(&self.last_words(ending));
    }

    /// The message that [`Self::fail`] writes.
    #[must_use]
    pub fn last_words(&self, ending: &Ending) -> TerminationMessage {
        let Ending { code, words, newer } = ending;
        TerminationMessage {
            reason: Reason::of(*code),
            rank: self.status.rank,
            // The next generation must be newer than the one that superseded this process.
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
