//! Checks which fields a model has, and their sizes.

use super::super::{ActivationCheckpointing, ConfigInvalid, TrainerConfig, invalid};
use super::{BatchNorm, Model, ModelName};

mod transformers;

/// The fields that a model has, for the error about a field that it lacks.
const fn sizes_of(name: ModelName) -> &'static str {
    match name {
        ModelName::Linear => "a linear model has no sizes",
        ModelName::Mlp => "an mlp has hidden",
        ModelName::Cnn => "a cnn has channels",
        ModelName::Resnet18 | ModelName::Resnet50 => {
            "a resnet has stem, batchNorm, ghostBatch and zeroInitResidual"
        }
        ModelName::Gpt2 | ModelName::Bert => {
            "a transformer has layers, heads, width, context, vocabulary and dropout"
        }
        ModelName::Llama => {
            "a llama has layers, heads, numKeyValueHeads, width, innerWidth, context, vocabulary, ropeTheta, normEpsilon, \
             tieEmbeddings and dropout"
        }
        ModelName::Switch => {
            "a switch has layers, heads, width, context, vocabulary, numExperts, capacityFactor, routerAuxLossCoef and dropout"
        }
        ModelName::Custom => "the settings of a custom model are in trainer.options",
    }
}

/// Refuses a field of another model, because it would have no effect.
pub(super) fn fields_belong_to_the_model(model: &Model) -> Result<(), ConfigInvalid> {
    const MLP: &[ModelName] = &[ModelName::Mlp];
    const CNN: &[ModelName] = &[ModelName::Cnn];
    const RESNETS: &[ModelName] = &[ModelName::Resnet18, ModelName::Resnet50];
    const TRANSFORMERS: &[ModelName] = &[
        ModelName::Gpt2,
        ModelName::Bert,
        ModelName::Llama,
        ModelName::Switch,
    ];
    const LLAMA: &[ModelName] = &[ModelName::Llama];
    const SWITCH: &[ModelName] = &[ModelName::Switch];
    let Model {
        name,
        hidden,
        channels,
        stem,
        batch_norm,
        ghost_batch,
        zero_init_residual,
        layers,
        heads,
        num_key_value_heads,
        width,
        inner_width,
        context,
        vocabulary,
        rope_theta,
        norm_epsilon,
        tie_embeddings,
        num_experts,
        capacity_factor,
        router_aux_loss_coef,
        dropout,
        label_smoothing,
        init_from: _,
    } = model;
    if *name == ModelName::Custom && label_smoothing.is_some() {
        let message = format!("is for built-in models; {}", sizes_of(*name));
        return invalid("model.labelSmoothing", message);
    }
    let fields: [(_, _, &[(_, bool)]); 6] = [
        (MLP, "an mlp", &[("model.hidden", hidden.is_some())]),
        (CNN, "a cnn", &[("model.channels", channels.is_some())]),
        (
            RESNETS,
            "a resnet",
            &[
                ("model.stem", stem.is_some()),
                ("model.batchNorm", batch_norm.is_some()),
                ("model.ghostBatch", ghost_batch.is_some()),
                ("model.zeroInitResidual", zero_init_residual.is_some()),
            ],
        ),
        (
            TRANSFORMERS,
            "gpt2, bert, llama and switch",
            &[
                ("model.layers", layers.is_some()),
                ("model.heads", heads.is_some()),
                ("model.width", width.is_some()),
                ("model.context", context.is_some()),
                ("model.vocabulary", vocabulary.is_some()),
                ("model.dropout", dropout.is_some()),
            ],
        ),
        (
            LLAMA,
            "a llama",
            &[
                ("model.numKeyValueHeads", num_key_value_heads.is_some()),
                ("model.innerWidth", inner_width.is_some()),
                ("model.ropeTheta", rope_theta.is_some()),
                ("model.normEpsilon", norm_epsilon.is_some()),
                ("model.tieEmbeddings", tie_embeddings.is_some()),
            ],
        ),
        (
            SWITCH,
            "a switch",
            &[
                ("model.numExperts", num_experts.is_some()),
                ("model.capacityFactor", capacity_factor.is_some()),
                ("model.routerAuxLossCoef", router_aux_loss_coef.is_some()),
            ],
        ),
    ];
    for (owners, words, fields) in fields {
        let given = fields.iter().find(|(_, given)| *given);
        if let Some((field, _)) = given.filter(|_| !owners.contains(name)) {
            return invalid(field, format!("is for {words}; {}", sizes_of(*name)));
        }
    }
    Ok(())
}

/// Refuses groups of a batch normalization without groups, and the reverse.
pub(super) fn groups(model: &Model) -> Result<(), ConfigInvalid> {
    match (model.batch_norm, model.ghost_batch) {
        (Some(BatchNorm::Ghost), Some(0)) => invalid(
            "model.ghostBatch",
            "must be at least 1 with batchNorm: Ghost; for statistics over the images of each process, set batchNorm: PerRank \
             and remove ghostBatch",
        ),
        (Some(BatchNorm::Sync | BatchNorm::PerRank), Some(_)) => invalid(
            "model.ghostBatch",
            "is for batchNorm: Ghost; remove ghostBatch, or set batchNorm: Ghost",
        ),
        _ => Ok(()),
    }
}

/// Refuses settings that divide the global batch into passes, or repeat one, if a batch
/// normalization sums over all of it.
pub(super) fn passes(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    if config.model.batch_norm() != Some(BatchNorm::Sync) {
        return Ok(());
    }
    if config.micro_batch_size.is_some() {
        return invalid(
            "microBatchSize",
            "divides a step into passes, and model.batchNorm: Sync needs the global batch in one: remove microBatchSize (with \
             more workers, each has fewer images), or set model.batchNorm: Ghost",
        );
    }
    if config.slices.is_some() {
        return invalid(
            "slices",
            "gives equal bits, and the sums of model.batchNorm: Sync depend on the number of processes: set model.batchNorm: \
             Ghost, or remove slices",
        );
    }
    if config.activation_checkpointing == ActivationCheckpointing::Blocks {
        return invalid(
            "activationCheckpointing",
            "would sum over all processes again in the backward pass with model.batchNorm: Sync: remove it, or set \
             model.batchNorm: Ghost",
        );
    }
    Ok(())
}

/// Refuses sizes that no model can have.
pub(super) fn sizes(model: &Model) -> Result<(), ConfigInvalid> {
    let empty_or_zero = |sizes: &[u32]| sizes.is_empty() || sizes.contains(&0);
    if empty_or_zero(model.hidden()) {
        return invalid(
            "model.hidden",
            "needs at least one layer, and each at least one unit",
        );
    }
    if empty_or_zero(model.channels()) {
        return invalid(
            "model.channels",
            "needs at least one convolution, and each one channel",
        );
    }
    for (field, value, least) in [
        ("model.layers", model.layers(), 1),
        ("model.heads", model.heads(), 1),
        ("model.numKeyValueHeads", model.num_key_value_heads(), 1),
        ("model.width", model.width(), 1),
        ("model.innerWidth", model.inner_width(), 1),
        ("model.context", model.context(), 1),
        ("model.vocabulary", model.vocabulary(), 2),
    ] {
        if value < least {
            return invalid(field, format!("must be at least {least}"));
        }
    }
    if !model.width().is_multiple_of(model.heads()) {
        return invalid(
            "model.heads",
            format!(
                "must divide width; {} heads do not divide {}",
                model.heads(),
                model.width()
            ),
        );
    }
    if model.name == ModelName::Llama {
        transformers::rotary_heads(model)?;
    }
    if model.name == ModelName::Switch {
        transformers::experts(model)?;
    }
    for (field, value) in [
        ("model.dropout", model.dropout()),
        ("model.labelSmoothing", model.label_smoothing()),
    ] {
        if !(0.0..1.0).contains(&value) {
            return invalid(field, "must be at least 0 and below 1");
        }
    }
    Ok(())
}
