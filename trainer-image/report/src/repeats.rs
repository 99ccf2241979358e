//! What is reported about committed steps that were lost and are repeated.

use roundhouse_contract::{Repeat, RepeatSource};
use roundhouse_elastic::ledger::{Repeats, Source, repeats};

use super::{Reporter, say_error};

impl Reporter {
    /// What the ledger knows of repeated steps. A generation that repeats some has committed a step. The job's
    /// generations are above `first_generation`.
    pub fn repeated(&mut self, found: &Repeats, first_generation: u64) {
        let num_steps = found.of_run();
        self.metrics.repeated_steps.set(num_steps.cast_signed());
        if num_steps == self.progress.repeated_steps {
            return;
        }
        self.progress.repeated_steps = num_steps;
        let newest = found.newest.filter(|it| it.generation > first_generation);
        self.progress.last_repeat = newest.as_ref().map(told);
        let own = first_generation + self.status.generation;
        if let Some(newest) = newest.filter(|newest| newest.generation == own) {
            say_error(&told(&newest).words(newest.num_steps));
        }
    }
}

fn told(repeat: &repeats::Repeat) -> Repeat {
    let repeats::Repeat {
        generation: _,
        num_steps: _,
        first,
        last,
        after,
        source,
    } = *repeat;
    let (source, rank) = match source {
        Source::Initial => (RepeatSource::Start, None),
        Source::Checkpoint => (RepeatSource::Checkpoint, None),
        Source::Rank(rank) => (RepeatSource::Memory, Some(rank)),
    };
    Repeat {
        first,
        last,
        after,
        source,
        rank,
    }
}
