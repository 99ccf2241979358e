//! An evaluation, computed by all ranks together: each takes its own part, so no sample counts twice.

use roundhouse_contract::trainer::Precision;
use roundhouse_elastic::Permutation;
use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::shard::shard;
use roundhouse_member::report::Evaluation;
use roundhouse_member::{Group, World, faults};

use crate::failure::Failure;
use crate::gradients::loss;
use crate::source::Source;
use crate::task::{LossSum, Mode, Task};

/// What one rank has counted over its part, or all over the whole.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    top1: f64,
    top5: f64,
    /// Sum of the negative log likelihoods of the tokens.
    nll: f64,
    tokens: f64,
    /// Passes that counted correct labels.
    labelled: f64,
    loss: f64,
    /// Ranks whose sums are not finite.
    not_finite: f64,
    /// Ranks that have broken the evaluation off.
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
        // Only finite numbers can be summed. A rank that has others says so.
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

    /// All of them, in the order in which ranks exchange them.
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

/// Evaluates a task in passes of at most `piece_size` samples, in the precision in which it is trained. A collective:
/// every rank calls it at the same step. `None` when a rank has broken it off, because its `is_over` became true
/// between two batches.
///
/// # Errors
/// [`Failure::PeerLost`] when a rank is gone, or the wait for it was given up.
pub fn evaluate<G: Group>(
    task: &dyn Task,
    source: &mut dyn Source,
    world: &World<G>,
    piece_size: u32,
    precision: Precision,
    is_over: impl Fn() -> bool,
) -> Result<Option<Evaluation>, Failure> {
    let num_samples = source.num_samples();
    let order = Permutation::in_order(num_samples);
    let part = shard(&(0..num_samples), world.rank(), world.size());
    let mut counts = Counts::default();
    let _guard = tch::no_grad_guard();
    let mut pieces = micro_batches(&part, Some(piece_size));
    pieces.retain(|piece| !piece.is_empty());
    let coming = pieces.iter().map(|piece| (piece.clone(), order.clone()));
    source.expect(&coming.collect::<Vec<_>>());
    for piece in pieces {
        if is_over() {
            counts.broken_off = 1.0;
            break;
        }
        world.check()?;
        faults::slow_evaluation_down();
        let batch = source.fetch(piece, &order)?;
        counts.add(&loss(task, &batch, precision, Mode::Evaluate)?)?;
    }
    let counts = counts.summed(world)?;
    Ok((counts.broken_off == 0.0).then(|| counts.evaluation(num_samples)))
}

#[cfg(test)]
mod tests;
