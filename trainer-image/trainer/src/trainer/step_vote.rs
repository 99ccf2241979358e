//! The vote of the ranks at the end of a step that the device commits. The host packs the part that
//! it knows ([`roundhouse_member::world::Packing`]), and the device fills in the rest.

use roundhouse_c10d::{Agreed, Event, Vote, agree};
use roundhouse_member::World;
use roundhouse_member::world::{Packing, RankVote, not_of_all_ranks};
use tch::{Kind, TchError, Tensor};

use crate::failure::Failure;
use crate::group::C10dGroup;
use crate::sync::explain;

/// The vote of one rank. Tensors are on the device; all except flag and digest are f64 with one
/// dimension.
#[derive(Debug)]
pub(super) struct StepVote<'a> {
    /// The part of the vote that the host knows.
    pub(super) rank_vote: &'a RankVote,
    /// Sum of the losses of this rank's samples: one element.
    pub(super) loss: &'a Tensor,
    /// Norms of the gradients; the first is the norm over the weights.
    pub(super) norms: &'a Tensor,
    /// Sum of the losses of the global batch, if it was sent with the gradients.
    pub(super) loss_sum: Option<&'a Tensor>,
    /// The digest of the summed gradients: see [`Finished::digest`](crate::sync::Finished).
    pub(super) digest: Option<&'a Tensor>,
    /// The flag (f32) of the previous step, if its end is not known yet: 1 if the weights did not
    /// change.
    pub(super) dropped: Option<&'a Tensor>,
}

/// A vote whose collective was launched.
#[derive(Debug)]
pub(super) struct Agreement {
    agreement: roundhouse_c10d::Agreement,
    has_loss_sum: bool,
}

/// The result of a vote, as the host reads it.
#[derive(Debug)]
pub(super) struct Read {
    /// The sums over all ranks, for [`Packing::unpack`].
    pub(super) sums: Vec<f64>,
    /// The loss sum of this rank.
    pub(super) local_loss: f64,
    pub(super) gradient_norm: f64,
    /// The loss sum of the global batch, if it was sent with the gradients.
    pub(super) loss_sum: Option<f64>,
    /// Whether the device has updated the weights.
    pub(super) is_good: bool,
}

impl Agreement {
    /// Launches the vote, after the gradients.
    pub(super) fn launch(own: &StepVote<'_>, world: &World<C10dGroup>) -> Result<Self, Failure> {
        let lists = tch::no_grad(|| lists(own, world.packing()))?;
        let [values, finite, aside] = &lists;
        let equal = own.digest.map(|it| it.f_view([1])).transpose()?;
        let vote = Vote {
            values,
            finite: Some(finite),
            equal: equal.as_ref(),
            aside: Some(aside),
        };
        let group = world.group().map(C10dGroup::process_group);
        let agreement = agree(vote, world.next_turn(), group);
        Ok(Self {
            agreement: agreement.map_err(|error| explain(world, error.into()))?,
            has_loss_sum: own.loss_sum.is_some(),
        })
    }

    /// The flag on the device: 1 if the weights do not change.
    pub(super) const fn found_inf(&self) -> &Tensor {
        self.agreement.found_inf()
    }

    /// Fails if the sums have already arrived and are garbage: another collective might then never
    /// end. Does not wait.
    pub(super) fn check(&self, world: &World<C10dGroup>) -> Result<(), Failure> {
        let agreed = self.agreement.peek();
        match agreed.map_err(|error| explain(world, error.into()))? {
            Some(agreed) => trusted(agreed).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Waits for the end of the step, and reads the result. The result is what the device has done,
    /// even if the group has been aborted since.
    pub(super) fn read(&self, end: &Event, world: &World<C10dGroup>) -> Result<Read, Failure> {
        let agreed = self.agreement.wait_until(end);
        let agreed = trusted(agreed.map_err(|error| explain(world, error.into()))?)?;
        let [local_loss, gradient_norm, rest @ ..] = agreed.aside.as_slice() else {
            return Err(Failure::internal("the agreement lacks loss and norm"));
        };
        Ok(Read {
            local_loss: *local_loss,
            gradient_norm: *gradient_norm,
            loss_sum: rest.last().copied().filter(|_| self.has_loss_sum),
            is_good: agreed.is_good,
            sums: agreed.sums,
        })
    }
}

/// Checks that the sums are those of all ranks and that all ranks have the same gradients.
fn trusted(agreed: Agreed) -> Result<Agreed, Failure> {
    if !agreed.is_right {
        return Err(not_of_all_ranks().into());
    }
    if !agreed.is_same {
        let words = "the ranks have different gradients after the all-reduce: a peer is aborting the \
                     group, or a device computes wrong results";
        return Err(Failure::peer_lost(words.to_owned()));
    }
    Ok(agreed)
}

/// The lists of the vote: values to sum, values that must be finite, and values that only this
/// rank's host reads.
fn lists(own: &StepVote<'_>, packing: Packing) -> Result<[Tensor; 3], TchError> {
    let StepVote {
        rank_vote,
        loss,
        norms,
        loss_sum,
        digest: _,
        dropped,
    } = own;
    let host = Tensor::f_from_slice(&packing.pack(rank_vote, 0.0))?;
    // On a CPU this is the host's own tensor, which no other code reads.
    let values = roundhouse_c10d::upload(&host, loss.device())?;
    let dropped = match dropped {
        Some(flag) => flag.f_to_kind(Kind::Double)?.f_view([1])?,
        None => loss.f_zeros_like()?,
    };
    let mut finite: Vec<Tensor> = vec![loss.shallow_clone(), norms.shallow_clone()];
    finite.extend(loss_sum.map(Tensor::shallow_clone));
    let finite = Tensor::f_cat(&finite, 0)?;
    let not = |tensor: &Tensor| {
        let all = tensor.f_isfinite()?.f_all()?;
        all.f_logical_not()?.f_to_kind(Kind::Double)?.f_view([1])
    };
    let counts = Tensor::f_cat(&[not(loss)?, not(&finite)?, dropped.shallow_clone()], 0)?;
    let counts_of = i64::try_from(Packing::NUM_OF_DEVICE).unwrap_or(i64::MAX);
    let place = i64::try_from(packing.place_of_loss()).unwrap_or(i64::MAX);
    values.f_narrow(0, 0, counts_of)?.f_copy_(&counts)?;
    let loss_or_zero = loss.f_nan_to_num(0.0, 0.0, 0.0)?;
    values.f_narrow(0, place, 1)?.f_copy_(&loss_or_zero)?;
    // A flag of 1 becomes infinite here, so this step has no update, either.
    let has_update = dropped.f_neg()?.f_add_scalar(1.0)?.f_reciprocal()?;
    let finite = Tensor::f_cat(&[finite, has_update], 0)?;
    let mut aside = vec![loss.shallow_clone(), norms.f_narrow(0, 0, 1)?];
    aside.extend(loss_sum.map(Tensor::shallow_clone));
    Ok([values, finite, Tensor::f_cat(&aside, 0)?])
}

#[cfg(test)]
mod tests;
