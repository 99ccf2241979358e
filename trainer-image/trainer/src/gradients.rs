//! The passes of one step: samples from the source, the loss from the task, gradients synchronized over the ranks.

use roundhouse_c10d::{Autocast, ReducerOptions, take_sum_wait};
use roundhouse_contract::trainer::Precision;
use roundhouse_elastic::{Batch, Permutation};
use roundhouse_member::World;
use roundhouse_member::faults::{self, Point};
use roundhouse_member::sections::Section;
use tch::{Device, Kind, TchError, Tensor};

use crate::batch::Batch as Samples;
use crate::failure::Failure;
use crate::group::C10dGroup;
use crate::source::Source;
use crate::stopwatch::Stopwatch;
use crate::sync::{Finished, Pass, Sync, explain};
use crate::task::{LossSum, Mode, Task};
use crate::tracing::Tracer;

/// What the passes of a step are made of.
pub struct Inputs<'a> {
    /// The model and its loss.
    pub task: &'a mut dyn Task,
    /// The data.
    pub source: &'a mut dyn Source,
    /// The order of the samples of this epoch.
    pub order: &'a Permutation,
    /// The global batch.
    pub batch: &'a Batch,
    /// The next one, and the order of its epoch, to be read ahead.
    pub next: Option<(&'a Batch, &'a Permutation)>,
    /// Seed of the training.
    pub seed: u64,
    /// In which numbers the forward pass computes.
    pub precision: Precision,
    /// What the loss is multiplied by, besides what makes it a mean; `None`: 1.
    pub loss_factor: Option<f64>,
}

/// Sum of the losses of this rank's samples, in 64 bits.
#[derive(Debug)]
pub enum OwnLoss {
    /// The host has read the loss of each pass.
    Host(f64),
    /// It is on the device: one element. `None`: there was no pass yet.
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

/// What came of the passes of one rank.
#[derive(Debug)]
pub struct Gradients {
    /// Sum of the losses of this rank's samples.
    pub local_loss: OwnLoss,
    /// What the gradients have brought along.
    pub finished: Finished,
}

/// What this rank has to tell the others, given the sum of its losses.
pub type Numbers<'a> = &'a mut dyn FnMut(f64) -> Vec<f64>;

/// Leaves in the task's parameters the mean gradients of the batch, the same on all ranks. `numbers` is asked right
/// before the last backward pass what this rank has to tell the others. Without it the host reads nothing.
///
/// Over a library that does not tell of lost peers, the gradients of a world that breaks may be garbage, and only the
/// collective at the end of the step tells: nothing is to be done with them before.
///
/// # Errors
/// A peer is lost: the step is lost, the weights are as before. The data cannot be read, or libtorch refuses.
pub fn gradients(
    inputs: &mut Inputs<'_>,
    sync: &mut dyn Sync,
    world: &World<C10dGroup>,
    mut numbers: Option<Numbers<'_>>,
    sections: &mut Stopwatch,
    tracer: &mut Tracer,
) -> Result<Gradients, Failure> {
    let rank = world.rank();
    let told = |error| explain(world, error);
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
    // That of passes before the step.
    let _ = take_sum_wait();
    roundhouse_c10d::zero_grad(task.parameters_mut().tensors_mut())?;
    faults::point(Point::Forward, rank, batch.step);
    let passes = sync.passes(&batch.places);
    let own = passes.iter().map(|pass| (pass.places.clone(), *order));
    let after = next.iter().flat_map(|(batch, order)| {
        let passes = sync.passes(&batch.places).into_iter();
        passes.map(|pass| (pass.places, *order))
    });
    let coming = own
        .chain(after)
        .map(|(places, order)| (places, order.clone()));
    source.expect(&coming.collect::<Vec<_>>());
    for pass in passes {
        let samples = sections.time(Section::Data, || source.fetch(pass.places.clone(), order))?;
        let sum = sections.time(Section::Forward, || {
            sync.before_forward().map_err(told)?;
            let sum = device_works(rank, batch).and_then(|()| {
                let mode = mode(*seed, batch, &pass);
                loss(&**task, &samples, *precision, mode)
            });
            sum.map_err(|failure| cause_in_pass(world, failure))
        })?;
        sections.waited(Section::Forward, take_sum_wait());
        let sum = spoilt(sum, batch, &pass)?;
        if pass.is_last {
            faults::point(Point::Backward, rank, batch.step);
        }
        sections.time(Section::Backward, || {
            local_loss.add(&sum.loss)?;
            let scaled = sum.loss.f_mul_scalar(scale)?;
            let own = match (&mut numbers, &local_loss) {
                (Some(numbers), OwnLoss::Host(loss)) if pass.is_last => numbers(*loss),
                _ => Vec::new(),
            };
            let root = sync.before_backward(&pass, scaled, &own).map_err(told)?;
            roundhouse_c10d::backward(&root).map_err(|error| told(error.into()))?;
            let done = sync.after_backward(&pass, &sum.loss, task.parameters_mut());
            done.map_err(told)
        })?;
        sections.waited(Section::Backward, take_sum_wait());
        tracer.pass_ends();
    }
    let finished = sections.time(Section::Communication, || {
        sync.finish(task.parameters_mut())
    });
    let finished = finished.map_err(told)?;
    Ok(Gradients {
        local_loss,
        finished,
    })
}

/// Leaves in the task's parameters this rank's own part of the gradients of the batch, to which no other rank has
/// added.
///
/// # Errors
/// The data cannot be read, or libtorch refuses.
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

/// How gradients are to be packed, which a pass over one sample tells: sums over three or more ranks depend on it. All
/// generations use it from their first step, which is then bit for bit what it would have been without a new one. It
/// needs no peer and changes nothing; the gradients are thrown away.
///
/// # Errors
/// The data cannot be read, or libtorch refuses.
pub fn layout(
    inputs: &mut Inputs<'_>,
    options: &ReducerOptions,
) -> Result<Vec<Vec<usize>>, Failure> {
    let pass = Pass {
        places: 0..1,
        slice: 0,
        ends_slice: true,
        is_last: true,
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

/// What an error of a forward pass means: if a sum over the ranks has failed in it, that is the cause.
fn cause_in_pass(world: &World<C10dGroup>, failure: Failure) -> Failure {
    match world.group().and_then(C10dGroup::failed_sum) {
        Some(error) => explain(world, error.clone().into()),
        None => failure,
    }
}

/// The loss of a pass, in some precision.
pub(crate) fn loss(
    task: &dyn Task,
    samples: &Samples,
    precision: Precision,
    mode: Mode,
) -> Result<LossSum, Failure> {
    let _autocast = autocast(precision, samples.inputs.device())?;
    Ok(task.loss(samples, mode)?)
}

/// Fails as a call to a broken GPU does, where a test asks for it.
fn device_works(rank: u32, batch: &Batch) -> Result<(), Failure> {
    match faults::device_failure(rank, batch.step) {
        Some(words) => Err(TchError::Torch(words.to_owned()).into()),
        None => Ok(()),
    }
}

/// The loss, or NaN where a test asks for it.
fn spoilt(sum: LossSum, batch: &Batch, pass: &Pass) -> Result<LossSum, Failure> {
    let is_first = pass.places.contains(&batch.places.start);
    if !(is_first && faults::spoils_loss(batch.step)) {
        return Ok(sum);
    }
    Ok(LossSum {
        loss: sum.loss.f_mul_scalar(f64::NAN)?,
        ..sum
    })
}

/// While it lives, the operations that gain from it run in 16 bits; `None`: all run in 32.
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
