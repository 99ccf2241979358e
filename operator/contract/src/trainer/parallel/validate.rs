//! Refuses combinations that processes cannot divide.

use super::super::model::{BatchNorm, ModelName};
use super::super::{ConfigInvalid, Ddp, OptimizerName, TrainerConfig, invalid};

/// Refuses options that need whole weights, gradients or optimizer state.
pub(in super::super) fn validate(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    validate_experts(config)?;
    validate_tensor(config)?;
    let parallel = config.parallel;
    validate_pipeline(config)?;
    let (field, name) = match (parallel.shard, parallel.tensor, parallel.pipeline) {
        (None, None, None) => return Ok(()),
        (Some(_), ..) => ("parallel.shard", "shard"),
        (None, Some(_), _) => ("parallel.tensor", "tensor"),
        (None, None, Some(_)) => ("parallel.pipeline", "pipeline"),
    };
    match config.optimizer.name {
        OptimizerName::Sgd | OptimizerName::Adamw => {}
        OptimizerName::Lars | OptimizerName::Lamb => {
            return invalid(
                field,
                format!(
                    "lars and lamb use the norm of each whole tensor: set optimizer.name to sgd or adamw, or remove {name}"
                ),
            );
        }
    }
    if config.optimizer.ema.is_some() {
        return invalid(
            field,
            "optimizer.ema keeps a second copy of all weights in each process: remove one of them",
        );
    }
    if config.channels_last {
        return invalid(
            field,
            format!("weights are cut in their usual order: remove channelsLast or {name}"),
        );
    }
    if parallel.divides_weights() {
        if config.ddp != Ddp::default() {
            return invalid(
                field,
                format!(
                    "trainer.ddp is for gradients that are whole in each process: remove ddp or {name}"
                ),
            );
        }
        if parallel.shards_gradients() && config.model.batch_norm == Some(BatchNorm::Sync) {
            return invalid(
                field,
                "with model.batchNorm: Sync processes of several workers wait for each other within a pass: \
                 set batchNorm to Ghost, or shard to Zero1",
            );
        }
    }
    Ok(())
}

/// Whether the processes of a worker can divide the layers of a model.
const fn has_layers_to_divide(model: ModelName) -> bool {
    match model {
        ModelName::Gpt2 | ModelName::Bert | ModelName::Llama => true,
        ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50
        | ModelName::Switch
        | ModelName::Custom => false,
    }
}

fn validate_tensor(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    const FIELD: &str = "parallel.tensor";
    let (model, Some(number)) = (&config.model, config.parallel.tensor) else {
        return Ok(());
    };
    if number < 2 {
        return invalid(FIELD, "must be at least 2: change tensor, or remove it");
    }
    if config.parallel.shard.is_some() || config.parallel.pipeline.is_some() {
        return invalid(FIELD, "excludes shard and pipeline: remove all but one");
    }
    if !has_layers_to_divide(model.name) {
        return invalid(
            FIELD,
            "the models gpt2, bert and llama have layers that processes can divide: remove tensor",
        );
    }
    let key_value_heads = if model.name == ModelName::Llama {
        model.num_key_value_heads()
    } else {
        model.heads()
    };
    let num_heads = [model.heads(), key_value_heads];
    if let Some(heads) = num_heads.iter().find(|heads| !heads.is_multiple_of(number)) {
        return invalid(
            FIELD,
            format!(
                "all processes have equally many heads of attention, and {number} does not divide {heads}: \
                 change tensor or the heads of the model"
            ),
        );
    }
    let vocabulary = model.vocabulary();
    if vocabulary < number {
        return invalid(
            FIELD,
            format!(
                "each process needs a token, and the vocabulary has {vocabulary}: reduce tensor"
            ),
        );
    }
    Ok(())
}

fn validate_pipeline(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    const FIELD: &str = "parallel.pipeline";
    let (model, Some(number)) = (&config.model, config.parallel.pipeline) else {
        return Ok(());
    };
    if number < 2 {
        return invalid(FIELD, "must be at least 2: change pipeline, or remove it");
    }
    if config.parallel.shard.is_some() {
        return invalid(FIELD, "excludes shard and tensor: remove all but one");
    }
    if !has_layers_to_divide(model.name) {
        return invalid(
            FIELD,
            "the models gpt2, bert and llama have layers for several processes: remove pipeline",
        );
    }
    let layers = model.layers();
    if layers < number {
        return invalid(
            FIELD,
            format!(
                "each process needs a layer, and the model has {layers}: change pipeline or model.layers"
            ),
        );
    }
    Ok(())
}

fn validate_experts(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    const FIELD: &str = "parallel.expert";
    let Some(number) = config.parallel.expert else {
        return Ok(());
    };
    if number < 2 {
        return invalid(FIELD, "must be at least 2: change expert, or remove it");
    }
    let num_experts = config.model.num_experts();
    match config.model.name {
        ModelName::Switch if !num_experts.is_multiple_of(number) => {
            return invalid(
                FIELD,
                format!(
                    "all processes have equally many experts, and {number} does not divide {num_experts}: \
                     change expert or model.numExperts"
                ),
            );
        }
        // The trainer checks the experts of a program.
        ModelName::Switch | ModelName::Custom => {}
        ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50
        | ModelName::Gpt2
        | ModelName::Bert
        | ModelName::Llama => {
            return invalid(FIELD, "only the model switch has experts: remove expert");
        }
    }
    if !config.parallel.shards_gradients() {
        return invalid(
            FIELD,
            "the processes that have different experts shard the other weights or their gradients: \
             set shard to Zero2 or Zero3",
        );
    }
    Ok(())
}
