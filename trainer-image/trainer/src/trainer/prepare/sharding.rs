//! Prepares what the processes of a worker shard.

use std::rc::Rc;

use roundhouse_contract::TrainerConfig;
use roundhouse_contract::trainer::ConfigInvalid;
use roundhouse_member::Launch;
use roundhouse_member::signals::LeaveRequest;
use tch::Device;

use crate::failure::Failure;
use crate::job::MakeUpdate;
use crate::optimizers::{ShardedUpdate, StageUpdate, Zero1};
use crate::parameters::Parameters;
use crate::pipeline::Pipeline;
use crate::rendezvous::C10d;
use crate::replica::{self, Replica};
use crate::shards::{ShardOptions, Shards};
use crate::tensor_parallel::TensorParallel;
use crate::update::Update;

/// The replica of this process; `None` if each process has a copy of the state, or trains alone.
pub(super) fn replica_of(
    config: &TrainerConfig,
    launch: &Launch,
    device: Device,
    leave: &LeaveRequest,
) -> Result<Option<Replica>, Failure> {
    if config.parallel.is_sharded() {
        Replica::meet(launch, device, leave, config.parallel.pipeline.is_some())
    } else {
        Ok(None)
    }
}

/// Shards weights or gradients if the configuration does. Moves what this process has of the
/// parameters to its device.
pub(super) fn divide(
    parameters: &mut Parameters,
    config: &TrainerConfig,
    replica: Option<&Replica>,
    device: Device,
) -> Result<(), Failure> {
    if let (Some(number), Some(replica)) = (config.parallel.tensor, replica) {
        let (group, sharing) = (replica.group(), replica.sharing());
        check_number("parallel.tensor", number, sharing.num_shards)?;
        return Ok(TensorParallel::divide(parameters, device, group, sharing)?);
    }
    if let (Some(number), Some(replica)) = (config.parallel.pipeline, replica) {
        let (group, sharing) = (replica.group(), replica.sharing());
        check_number("parallel.pipeline", number, sharing.num_shards)?;
        let up = replica.second_group();
        let up =
            up.ok_or_else(|| Failure::internal("a pipeline has groups for both directions"))?;
        return Pipeline::divide(parameters, device, (group, up), sharing)
            .map_err(replica::explain);
    }
    let shard = config.parallel.shard.filter(|it| it.shards_gradients());
    let (Some(shard), Some(replica)) = (shard, replica) else {
        return Ok(parameters.move_to(device)?);
    };
    let (group, sharing) = (replica.group(), replica.sharing());
    if let Some(number) = config.parallel.expert {
        check_number("parallel.expert", number, sharing.num_shards)?;
        check_experts(parameters, number)?;
    }
    let how = ShardOptions {
        shard,
        sums: config.slices.is_none(),
        spreads_experts: config.parallel.expert.is_some(),
    };
    Shards::divide(parameters, device, group, sharing, how).map_err(replica::explain)
}

fn check_number(field: &'static str, number: u32, processes: u32) -> Result<(), ConfigInvalid> {
    if number == processes {
        return Ok(());
    }
    Err(ConfigInvalid {
        field,
        message: format!(
            "must be {processes}, the number of processes of a worker: change it or workers.procsPerWorker"
        ),
    })
}

/// Checks what the job's specification does not know of a model.
fn check_experts(parameters: &Parameters, number: u32) -> Result<(), ConfigInvalid> {
    let invalid = |message: String| {
        Err(ConfigInvalid {
            field: "parallel.expert",
            message,
        })
    };
    if parameters.experts().is_empty() {
        return invalid("the model of this program has no experts: remove expert".to_owned());
    }
    for layer in parameters.experts() {
        if layer.is_empty() || !layer.len().is_multiple_of(number as usize) {
            let count = layer.len();
            return invalid(format!(
                "a layer has {count} experts, which {number} does not divide: change expert or the experts of the program"
            ));
        }
    }
    Ok(())
}

/// Creates the groups of generations, for processes that hold these parameters.
pub(super) fn network(device: Device, parameters: &Parameters) -> C10d {
    let num_shards = parameters.sharing().map_or(1, |it| it.num_shards);
    C10d::on(device).in_replicas_of(num_shards)
}

/// Creates the update of the parameters, or of this process' part of them.
pub(super) fn update_of(
    parameters: &mut Parameters,
    replica: Option<&Replica>,
    make: MakeUpdate,
) -> Result<Box<dyn Update>, Failure> {
    if let Some(pipeline) = parameters.pipeline().cloned() {
        return Ok(Box::new(StageUpdate::new(parameters, &pipeline, make)?));
    }
    // With tensor parallelism the parameters are those of this process.
    let replica = replica.filter(|_| parameters.division().tensor_parallel.is_none());
    let Some(replica) = replica else {
        return Ok(make(parameters)?);
    };
    let mut averages = false;
    let make = |own: &Parameters| {
        let inner = make(own)?;
        averages = inner.averages().is_some();
        Ok(inner)
    };
    let update: Box<dyn Update> = if let Some(shards) = parameters.shards() {
        Box::new(ShardedUpdate::new(parameters, Rc::clone(shards), make)?)
    } else {
        let (group, sharing) = (replica.group(), replica.sharing());
        Box::new(Zero1::new(parameters, group, sharing, make)?)
    };
    if averages {
        return Err(ConfigInvalid {
            field: "parallel.shard",
            message: "the update of this program averages the weights, of which each process would have a part: \
                      remove one of them"
                .to_owned(),
        }
        .into());
    }
    Ok(update)
}
