//! Reports about committed steps that were lost and are repeated.

use roundhouse_contract::{Repeat, RepeatSource};
use roundhouse_elastic::ledger::{Repeats, Source, repeats};

use super::{Reporter, say_error};

impl Reporter {
    /// Reports the repeated steps of the ledger. A generation that repeats steps has committed one.
    /// The job's generations are larger than `first_generation`.
    pub fn repeated(&mut self, found: &Repeats, first_generation: u64) {
        let num_steps = found.of_run();
        self.metrics.repeated_steps.set(num_steps.cast_signed());
        if num_steps == self.progress.repeated_steps {
            return;
        }
        self.progress.repeated_steps = num_steps;
        let newest = found.newest.filter(|it| it.generation > first_generation);
        self.progress.last_repeat = newest.as_ref().map(reported);
        let own = first_generation + self.status.generation;
        if let Some(newest) = newest.filter(|newest| newest.generation == own) {
            say_error(&reported(&newest).words(newest.num_steps));
        }
    }
}

fn reported(repeat: &repeats::Repeat) -> Repeat {
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
