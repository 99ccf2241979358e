//! The forward and backward passes of one step: samples from the source, the loss from the task,
//! and gradients synchronized over the ranks.

use std::collections::VecDeque;
use std::ops::Range;

use roundhouse_c10d::{Autocast, ReducerOptions, take_sum_wait};
use roundhouse_contract::trainer::Precision;
use roundhouse_elastic::{Batch, Permutation};
use roundhouse_member::World;
use roundhouse_member::faults::{self, Point};
use roundhouse_report::Section;
use tch::{Device, Kind, TchError, Tensor};

use crate::batch::Batch as Samples;
use crate::failure::Failure;
use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::replica;
use crate::source::Source;
use crate::stopwatch::Stopwatch;
use crate::sync::{Finished, Pass, Sync, explain};
use crate::task::{LossSum, Mode, Task};
use crate::tracing::Tracer;

/// The inputs of a step's passes.
pub struct Inputs<'a> {
    /// The model with its loss.
    pub task: &'a mut dyn Task,
    /// The training data of this rank.
    pub source: &'a mut dyn Source,
    /// The order of the samples in this epoch.
    pub order: &'a Permutation,
    /// The global batch of the step.
    pub batch: &'a Batch,
    /// The next global batch and the order of its epoch, to be read ahead.
    pub next: Option<(&'a Batch, &'a Permutation)>,
    /// Seed of the training (`trainer.seed`).
    pub seed: u64,
    /// Floating-point type of the forward pass.
    pub precision: Precision,
    /// Additional factor of the loss, for loss scaling; `None`: 1.
    pub loss_factor: Option<f64>,
}

/// Sum of the losses of this rank's samples, in 64 bits.
#[derive(Debug)]
pub enum OwnLoss {
    /// The host has read the loss of each pass.
    Host(f64),
    /// The sum is on the device, as one element. `None`: no pass has run yet.
    Device(Option<Tensor>),
}

impl OwnLoss {
    fn add(&mut self, loss: &Tensor) -> Result<(), TchError> {
        match self {
            Self::Host(sum) => *sum += loss.f_double_value(&[])?,
            Self::Device(sum) => {
                let loss = loss.f_detach()?.f_to_kind(Kind::Double)?.f_view([1])?;
                *sum = Some(match sum.take() {
                    None => loss,
                    Some(before) => before.f_add(&loss)?,
                });
            }
        }
        Ok(())
    }
}

/// The result of the passes of one rank.
#[derive(Debug)]
pub struct Gradients {
    /// Sum of the losses of this rank's samples.
    pub local_loss: OwnLoss,
    /// What the synchronization of the gradients returned.
    pub finished: Finished,
}

/// Computes this rank's numbers for the vote at the end of the step from the sum of its losses.
pub type Numbers<'a> = &'a mut dyn FnMut(f64) -> Vec<f64>;

/// Computes the mean gradients of the batch, which are the same on all ranks, and leaves them in
/// the task's parameters. Calls `numbers` right before the last backward pass, and sends its result
/// with the gradients, if `sync` can. Without `numbers` the host reads nothing from the device.
///
/// If the communication library does not report lost peers (NCCL), the gradients may be garbage
/// when a process group fails. Only the vote at the end of the step detects this, so the caller
/// must not use the gradients before the vote.
///
/// # Errors
/// A peer is lost: the step is lost, and the weights are unchanged. Or the data cannot be read, or
/// libtorch refuses an operation.
pub fn gradients(
    inputs: &mut Inputs<'_>,
    sync: &mut dyn Sync,
    world: &World<C10dGroup>,
    mut numbers: Option<Numbers<'_>>,
    sections: &mut Stopwatch,
    tracer: &mut Tracer,
) -> Result<Gradients, Failure> {
    let rank = world.rank();
    let explained = |error| explain(world, error);
    let Inputs {
        task,
        source,
        order,
        batch,
        next,
        seed,
        precision,
        loss_factor,
    } = inputs;
    let scale = sync.scale(batch.num_samples()) * loss_factor.unwrap_or(1.0);
    let mut local_loss = match numbers {
        Some(_) => OwnLoss::Host(0.0),
        None => OwnLoss::Device(None),
    };
    // Discard the waits of passes before this step.
    let _ = take_sum_wait();
    task.parameters_mut().forget_gradients()?;
    faults::point(Point::Forward, rank, batch.step);
    let passes = sync.passes(&batch.places);
    source.expect(&coming(sync, (batch, order), *next));
    // Passes whose backward pass comes later.
    let (mut ahead, mut begun) = (sync.passes_ahead(), VecDeque::new());
    let mut passes = passes.into_iter();
    let mut run = || -> Result<(), Failure> {
        loop {
            if let Some(pass) = passes.next() {
                let samples =
                    sections.time(Section::Data, || source.fetch(pass.places.clone(), order))?;
                let sum = sections.time(Section::Forward, || {
                    sync.before_forward().map_err(explained)?;
                    let sum = device_works(rank, batch).and_then(|()| {
                        let mode = mode(*seed, batch, &pass);
                        loss(&**task, &samples, *precision, mode)
                    });
                    sum.map_err(|failure| cause_in_pass(world, failure))
                })?;
                sections.waited(Section::Forward, take_sum_wait());
                begun.push_back((spoilt(sum, batch, &pass)?, pass));
                if ahead > 0 {
                    ahead -= 1;
                    continue;
                }
            }
            let Some((sum, pass)) = begun.pop_front() else {
                return Ok(());
            };
            if pass.is_last {
                faults::point(Point::Backward, rank, batch.step);
            }
            if !pass.is_idle {
                sections.time(Section::Backward, || local_loss.add(&sum.loss))?;
            }
            let carries = pass.is_last && sync.carries_numbers();
            let own = match (&mut numbers, &local_loss) {
                (Some(numbers), OwnLoss::Host(loss)) if carries => {
                    sections.time(Section::Communication, || numbers(*loss))
                }
                _ => Vec::new(),
            };
            sections.time(Section::Backward, || {
                let scale = if pass.is_idle { 0.0 } else { scale };
                let scaled = sum.loss.f_mul_scalar(scale)?;
                let root = sync
                    .before_backward(&pass, scaled, &own)
                    .map_err(explained)?;
                roundhouse_c10d::backward(&root).map_err(|error| explained(error.into()))?;
                let done = sync.after_backward(&pass, &sum.loss, task.parameters_mut());
                done.map_err(explained)
            })?;
            sections.waited(Section::Backward, take_sum_wait());
            tracer.pass_ends();
        }
    };
    run().map_err(|failure| within_replica(task.parameters(), failure))?;
    faults::point(Point::Sum, rank, batch.step);
    let finished = sections.time(Section::Communication, || {
        sync.finish(task.parameters_mut())
    });
    let finished = finished.map_err(explained)?;
    Ok(Gradients {
        local_loss,
        finished,
    })
}

/// What this rank reads for the passes of a batch, and for those of the next one.
fn coming(
    sync: &dyn Sync,
    (batch, order): (&Batch, &Permutation),
    next: Option<(&Batch, &Permutation)>,
) -> Vec<(Range<u64>, Permutation)> {
    let batches = std::iter::once((batch, order)).chain(next);
    let places = batches.flat_map(|(batch, order)| {
        let passes = sync.passes(&batch.places).into_iter();
        passes.map(|pass| (pass.places, order.clone()))
    });
    places.collect()
}

/// Computes this rank's own part of the batch's gradients, without a sum over the ranks, and leaves
/// it in the task's parameters.
///
/// # Errors
/// The data cannot be read, or libtorch refuses an operation.
pub fn own_gradients(inputs: &mut Inputs<'_>, sync: &dyn Sync) -> Result<(), Failure> {
    let Inputs {
        task,
        source,
        order,
        batch,
        next: _,
        seed,
        precision,
        loss_factor,
    } = inputs;
    let scale = sync.scale(batch.num_samples()) * loss_factor.unwrap_or(1.0);
    roundhouse_c10d::zero_grad(task.parameters_mut().tensors_mut())?;
    for pass in sync.passes(&batch.places) {
        let samples = source.fetch(pass.places.clone(), order)?;
        let sum = loss(&**task, &samples, *precision, mode(*seed, batch, &pass))?;
        let sum = spoilt(sum, batch, &pass)?;
        roundhouse_c10d::backward(&sum.loss.f_mul_scalar(scale)?)?;
    }
    Ok(())
}

/// Finds the buckets into which gradients are packed, by a pass over one sample. Sums over three or
/// more ranks depend on the packing. All generations use the same packing from their first step, so
/// a step is bit for bit the same whether a new generation starts before it or not. The function
/// needs no peer, changes nothing, and discards the gradients.
///
/// # Errors
/// The data cannot be read, or libtorch refuses an operation.
pub fn layout(
    inputs: &mut Inputs<'_>,
    options: &ReducerOptions,
) -> Result<Vec<Vec<usize>>, Failure> {
    let pass = Pass {
        places: 0..1,
        slice: 0,
        ends_slice: true,
        is_last: true,
        is_idle: false,
    };
    let Inputs {
        task,
        source,
        order,
        batch,
        next: _,
        seed,
        precision,
        loss_factor: _,
    } = inputs;
    let samples = source.fetch(pass.places.clone(), order)?;
    let sum = loss(&**task, &samples, *precision, mode(*seed, batch, &pass))?;
    let layout = roundhouse_c10d::layout(task.parameters().tensors(), &sum.loss, options)?;
    roundhouse_c10d::zero_grad(task.parameters_mut().tensors_mut())?;
    Ok(layout)
}

/// The failure of a process whose pass has failed, if the processes of its replica compute passes
/// at the same time: they wait for this one, which cannot continue without them.
pub(crate) fn within_replica(parameters: &Parameters, failure: Failure) -> Failure {
    if parameters.sharing().is_none() {
        return failure;
    }
    match parameters.failure_in_pass() {
        Some(words) => replica::lost(&words),
        None if failure.is_peer_lost() => replica::lost(&failure),
        None => failure,
    }
}

/// The cause of an error in a forward pass: the failed sum over the ranks if there is one.
fn cause_in_pass(world: &World<C10dGroup>, failure: Failure) -> Failure {
    match world.group().and_then(C10dGroup::failed_sum) {
        Some(error) => explain(world, error.clone().into()),
        None => failure,
    }
}

/// Computes the loss of a pass in the given precision.
pub(crate) fn loss(
    task: &dyn Task,
    samples: &Samples,
    precision: Precision,
    mode: Mode,
) -> Result<LossSum, Failure> {
    let _autocast = autocast(precision, samples.inputs.device())?;
    Ok(task.loss(samples, mode)?)
}

/// Fails as a call to a broken GPU does, if a test has injected this fault.
fn device_works(rank: u32, batch: &Batch) -> Result<(), Failure> {
    match faults::device_failure(rank, batch.step) {
        Some(words) => Err(TchError::Torch(words.to_owned()).into()),
        None => Ok(()),
    }
}

/// The loss, or NaN if a test has injected this fault.
fn spoilt(sum: LossSum, batch: &Batch, pass: &Pass) -> Result<LossSum, Failure> {
    let is_first = pass.places.contains(&batch.places.start) && !pass.is_idle;
    if !(is_first && faults::spoils_loss(batch.step)) {
        return Ok(sum);
    }
    Ok(LossSum {
        loss: sum.loss.f_mul_scalar(f64::NAN)?,
        ..sum
    })
}

/// While the guard lives, operations for which autocast is useful run in 16 bits. `None`: all
/// operations run in 32 bits.
fn autocast(precision: Precision, device: Device) -> Result<Option<Autocast>, Failure> {
    match precision {
        Precision::Fp32 | Precision::Tf32 => Ok(None),
        Precision::Bf16 => Ok(Some(Autocast::enter(device, Kind::BFloat16)?)),
        Precision::Fp16 => Ok(Some(Autocast::enter(device, Kind::Half)?)),
    }
}

const fn mode(seed: u64, batch: &Batch, pass: &Pass) -> Mode {
    Mode::Train {
        seed,
        step: batch.step,
        slice: pass.slice,
    }
}
