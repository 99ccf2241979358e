//! Evaluation by all ranks together: each rank evaluates its own part, so no sample counts twice.

use roundhouse_contract::trainer::Precision;
use roundhouse_elastic::Permutation;
use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::shard::shard;
use roundhouse_member::{Group, World, faults};
use roundhouse_report::Evaluation;

use crate::failure::Failure;
use crate::gradients::{loss, within_replica};
use crate::source::Source;
use crate::task::{LossSum, Mode, Task};

/// Counts of one rank over its part, or of all ranks over the whole data.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    top1: f64,
    top5: f64,
    /// Sum of the negative log likelihoods of the tokens.
    nll: f64,
    tokens: f64,
    /// Number of passes that counted correct labels.
    labelled: f64,
    loss: f64,
    /// Number of ranks whose sums are not finite.
    not_finite: f64,
    /// Number of ranks that have stopped the evaluation early.
    broken_off: f64,
}

impl Counts {
    fn add(&mut self, sums: &LossSum) -> Result<(), Failure> {
        self.loss += sums.loss.f_double_value(&[])?;
        for (name, count) in &sums.counts {
            let known = match *name {
                "top1" => &mut self.top1,
                "top5" => &mut self.top5,
                "nll" => &mut self.nll,
                "tokens" => &mut self.tokens,
                _ => continue,
            };
            *known += count.f_double_value(&[])?;
        }
        self.labelled += f64::from(u8::from(
            sums.counts.iter().any(|(name, _)| *name == "top1"),
        ));
        Ok(())
    }

    /// The sum over all ranks.
    fn summed<G: Group>(mut self, world: &World<G>) -> Result<Self, Failure> {
        // Only finite numbers can be summed. A rank with other numbers sets a flag.
        self.not_finite = f64::from(u8::from(!(self.loss.is_finite() && self.nll.is_finite())));
        for sum in [&mut self.nll, &mut self.loss] {
            if !sum.is_finite() {
                *sum = 0.0;
            }
        }
        let sums = world.sum_signed(&self.numbers().map(|number| *number))?;
        for (number, sum) in self.numbers().into_iter().zip(sums) {
            *number = sum;
        }
        Ok(self)
    }

    /// All counts, in the order in which the ranks exchange them.
    fn numbers(&mut self) -> [&mut f64; 8] {
        let Self {
            top1,
            top5,
            nll,
            tokens,
            labelled,
            loss,
            not_finite,
            broken_off,
        } = self;
        [
            top1, top5, nll, tokens, labelled, loss, not_finite, broken_off,
        ]
    }

    fn evaluation(&self, num_samples: u64) -> Evaluation {
        let total = num_samples.max(1) as f64;
        let known = |value: f64| {
            if self.not_finite > 0.0 {
                f64::NAN
            } else {
                value
            }
        };
        let share = |count: f64| (self.labelled > 0.0).then_some(count / total);
        Evaluation {
            accuracy: share(self.top1),
            top5: share(self.top5),
            perplexity: (self.tokens > 0.0).then(|| known((self.nll / self.tokens).exp())),
            loss: known(self.loss / total),
            num_samples,
        }
    }
}

/// How a rank computes its passes of an evaluation.
pub struct Passes<'a> {
    /// Largest number of samples of a pass.
    pub piece_size: u32,
    /// The precision of training passes.
    pub precision: Precision,
    /// Whether this rank has a reason to stop early. Called before each pass.
    pub is_over: &'a dyn Fn() -> bool,
    /// Called before each pass with whether this rank has a reason to stop; returns whether it
    /// stops. Ranks that shard weights return the same, because each pass needs all of them.
    pub stops: &'a mut (dyn FnMut(bool) -> Result<bool, Failure> + 'a),
}

/// Evaluates a task. A collective: every rank calls it at the same step. `None` if a rank has
/// stopped the evaluation early.
///
/// # Errors
/// [`Failure::PeerLost`] if a rank is lost or does not answer in time.
pub fn evaluate<G: Group>(
    task: &dyn Task,
    source: &mut dyn Source,
    world: &World<G>,
    passes: Passes<'_>,
) -> Result<Option<Evaluation>, Failure> {
    let Passes {
        piece_size,
        precision,
        is_over,
        stops,
    } = passes;
    let num_samples = source.num_samples();
    let order = Permutation::in_order(num_samples);
    let parameters = task.parameters();
    let pieces_of = |rank| {
        let (share, num_shares) = parameters.share_of(rank, world.size());
        let part = shard(&(0..num_samples), share, num_shares);
        let mut pieces = micro_batches(&part, Some(piece_size));
        pieces.retain(|piece| !piece.is_empty());
        pieces
    };
    let own = pieces_of(world.rank());
    // If a pass needs all processes of the replica, ranks with fewer passes compute a sample that
    // does not count.
    let num_passes = if parameters.needs_replica() {
        let numbers = (0..world.size()).map(|rank| pieces_of(rank).len());
        numbers.max().unwrap_or_default()
    } else {
        own.len()
    };
    let mut counts = Counts::default();
    let _guard = tch::no_grad_guard();
    let idle = std::iter::repeat(0..1).map(|places| (places, false));
    let pieces = own.into_iter().map(|places| (places, true)).chain(idle);
    let pieces: Vec<_> = pieces.take(num_passes).collect();
    let coming = pieces
        .iter()
        .map(|(places, _)| (places.clone(), order.clone()));
    source.expect(&coming.collect::<Vec<_>>());
    for (places, is_own) in pieces {
        let checked = world.check();
        if stops(is_over() || checked.is_err())? {
            checked?;
            counts.broken_off = 1.0;
            break;
        }
        faults::slow_evaluation_down();
        let batch = source.fetch(places, &order)?;
        if let Some(shards) = parameters.shards() {
            shards.sharding().begin_pass()?;
        }
        let sums = loss(task, &batch, precision, Mode::Evaluate);
        let sums = sums.map_err(|failure| within_replica(parameters, failure))?;
        if let Some(pipeline) = parameters.pipeline() {
            let sent = pipeline.flush().map_err(Failure::from);
            sent.map_err(|failure| within_replica(parameters, failure))?;
        }
        if is_own && parameters.counts_losses() {
            counts.add(&sums)?;
        }
    }
    let counts = counts.summed(world)?;
    Ok((counts.broken_off == 0.0).then(|| counts.evaluation(num_samples)))
}

#[cfg(test)]
mod tests;
