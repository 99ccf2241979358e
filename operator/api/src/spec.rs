//! `spec`: the wanted state of a job.
#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats the struct inside a function"
)]

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::CustomResource;
use kube::KubeSchema;
use roundhouse_contract::TrainerConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::checkpoint::{
    Best, Checkpoint, CheckpointClaim, CheckpointHostPath, CheckpointVolume, CopyMedium,
    LocalCopies,
};
pub use self::elastic::Elastic;
pub use self::failure_policy::{
    ExitCodeOperator, FailureAction, FailurePolicy, FailureRule, OnExitCodes,
};
pub use self::scheduling::{Gang, Scheduling, TopologyMode};
use crate::status::TrainingJobStatus;

mod checkpoint;
mod elastic;
mod failure_policy;
mod scheduling;

/// A distributed training job: workers that train one model together, data-parallel.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "roundhouse.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    singular = "trainingjob",
    shortname = "tj",
    category = "training",
    namespaced,
    derive = "PartialEq",
    status = "TrainingJobStatus",
    doc = "A distributed training job: workers that train one model together, data-parallel.",
    scale(
        spec_replicas_path = ".spec.workers.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.state",
        description = "What the job does or waits for, in one word"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.workers.summary"),
    printcolumn(name = "World", type_ = "integer", json_path = ".status.membership.worldSize"),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.progress.step"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress.percent"),
    printcolumn(name = "Incidents", type_ = "integer", json_path = ".status.incidents.total"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Loss", type_ = "number", json_path = ".status.progress.loss", priority = 1),
    printcolumn(
        name = "Samples/s",
        type_ = "number",
        json_path = ".status.progress.samplesPerSecond",
        priority = 1
    ),
    printcolumn(
        name = "Generation",
        type_ = "integer",
        json_path = ".status.membership.generation",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Running\")].message",
        priority = 1
    ),
    validation = Rule::new("size(self.metadata.name) <= 44 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 44 characters: a lower-case letter, then letters, digits or '-'; the names of pods and Services contain it"),
    validation = Rule::new("!has(self.spec.workers.minReplicas) || self.spec.workers.minReplicas <= self.spec.workers.replicas")
        .message("workers.minReplicas must not be above workers.replicas")
        .field_path(".spec.workers.minReplicas"),
    validation = Rule::new("!has(self.spec.workers.maxReplicas) || self.spec.workers.replicas <= self.spec.workers.maxReplicas")
        .message("workers.replicas must not be above workers.maxReplicas")
        .field_path(".spec.workers.replicas")
)]
#[serde(rename_all = "camelCase")]
// The rules for edits follow from the table in `fields`.
#[x_kube(
    validation = Rule::new("!has(self.scheduling.queueName) || self.scheduling.gang == 'Volcano'")
        .message("scheduling.queueName is a queue of Volcano: remove it, or set scheduling.gang to Volcano; a queue of Kueue is named by labels of workers.template").field_path(".scheduling"),
    validation = Rule::new("!has(self.scheduling.priorityClassName) || !has(self.workers.template) || !has(self.workers.template.spec) || !has(self.workers.template.spec.priorityClassName) || self.workers.template.spec.priorityClassName == self.scheduling.priorityClassName")
        .message("workers.template has another priorityClassName than scheduling: remove one of them").field_path(".scheduling"),
    validation = Rule::new("!has(self.workers.template) || !has(self.workers.template.spec) || !((has(self.workers.template.spec.hostNetwork) && self.workers.template.spec.hostNetwork) || (has(self.workers.template.spec.hostPID) && self.workers.template.spec.hostPID) || (has(self.workers.template.spec.hostIPC) && self.workers.template.spec.hostIPC) || has(self.workers.template.spec.nodeName) || has(self.workers.template.spec.hostname) || has(self.workers.template.spec.subdomain))")
        .message("leave hostNetwork, hostPID, hostIPC, nodeName, hostname and subdomain out of workers.template.spec: the operator decides them for every worker").field_path(".workers"),
    validation = Rule::new("(self.elastic.onScale == 'ScaleBatch') == has(self.elastic.scaleBatch)")
        .message("elastic.onScale ScaleBatch needs elastic.scaleBatch.referenceReplicas, the number of workers that trainer.globalBatchSize is meant for; without ScaleBatch leave out elastic.scaleBatch").field_path(".elastic"),
    validation = Rule::new("self.elastic.onScale != 'ScaleBatch' || has(self.trainer)")
        .message("elastic.onScale ScaleBatch is for the built-in trainer; a script of your own knows its world size").field_path(".elastic"),
    validation = Rule::new("self.elastic.onScale != 'ScaleBatch' || !has(self.trainer) || !has(self.trainer.parallel) || !has(self.trainer.parallel.pipeline) || self.trainer.parallel.pipeline == 1")
        .message("leave out elastic.onScale ScaleBatch with trainer.parallel.pipeline: a smaller batch has fewer passes, and the stages of the pipeline wait for each other").field_path(".elastic.onScale"),
    validation = Rule::new("self.elastic.mode != 'Restart' || !has(self.trainer)")
        .message("leave out trainer: with elastic.mode Restart the command of the container named trainer is run").field_path(".trainer"),
    validation = Rule::new("!has(self.workers.sharded) || !self.workers.sharded || (!has(self.trainer) && self.elastic.mode == 'InProcess')")
        .message("workers.sharded is for a script of your own that calls roundhouse.join(): leave it out, or leave out trainer and keep elastic.mode at InProcess").field_path(".workers.sharded"),
    validation = Rule::new("!has(self.workers.podsPerReplica) || self.workers.podsPerReplica == 1 || (has(self.workers.sharded) && self.workers.sharded) || (has(self.trainer) && has(self.trainer.parallel) && (has(self.trainer.parallel.shard) || has(self.trainer.parallel.tensor) || has(self.trainer.parallel.pipeline) || has(self.trainer.parallel.expert)))")
        .message("workers.podsPerReplica is for processes that share one copy of the model: set trainer.parallel, or workers.sharded for a script that calls roundhouse.join(), or leave it out").field_path(".workers.podsPerReplica"),
    validation = Rule::new("!has(self.checkpoint) || !has(self.checkpoint.local) || !has(self.checkpoint.local.peerCopies) || self.checkpoint.local.peerCopies == 0 || (has(self.workers.podsPerReplica) && self.workers.podsPerReplica > 1) || (has(self.workers.spares) && self.workers.spares > 0)")
        .message("checkpoint.local.peerCopies needs another pod that holds the copies: set workers.spares to at least 1, or workers.podsPerReplica to 2 or more, or leave out peerCopies").field_path(".checkpoint.local.peerCopies"),
    validation = Rule::new("has(self.trainer) || (has(self.workers.template) && has(self.workers.template.spec) && has(self.workers.template.spec.containers) && self.workers.template.spec.containers.exists(c, c.name == 'trainer' && has(c.image) && has(c.command)))")
        .message("give trainer; or, to run a command of your own, give workers.template a container named trainer with image and command: a script that calls roundhouse.join(), or, with elastic.mode Restart, one that runs under torchrun; the command of the image itself is not known").field_path(".workers"),
    validation = Rule::new("!has(self.trainer) || has(self.trainer.epochs) != has(self.trainer.steps)")
        .message("give exactly one of trainer.epochs, trainer.steps").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name == 'mlp' || !has(self.trainer.model.hidden)")
        .message("model.hidden is for an mlp: remove it (a cnn has model.channels)").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name == 'cnn' || !has(self.trainer.model.channels)")
        .message("model.channels is for a cnn: remove it (an mlp has model.hidden)").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name in ['resnet18', 'resnet50'] || !(has(self.trainer.model.stem) || has(self.trainer.model.batchNorm) || has(self.trainer.model.ghostBatch) || has(self.trainer.model.zeroInitResidual))")
        .message("model.stem, batchNorm, ghostBatch and zeroInitResidual are for resnet18 and resnet50: remove them").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name in ['gpt2', 'bert', 'llama', 'switch'] || !(has(self.trainer.model.layers) || has(self.trainer.model.heads) || has(self.trainer.model.width) || has(self.trainer.model.context) || has(self.trainer.model.vocabulary) || has(self.trainer.model.dropout))")
        .message("model.layers, heads, width, context, vocabulary and dropout are for gpt2, bert, llama and switch: remove them").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || (has(self.trainer.model.width) ? self.trainer.model.width : 768) % (has(self.trainer.model.heads) ? self.trainer.model.heads : 12) == 0")
        .message("model.heads must divide model.width (default 768; 12 heads)").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name == 'llama' || !(has(self.trainer.model.numKeyValueHeads) || has(self.trainer.model.innerWidth) || has(self.trainer.model.ropeTheta) || has(self.trainer.model.normEpsilon) || has(self.trainer.model.tieEmbeddings))")
        .message("model.numKeyValueHeads, innerWidth, ropeTheta, normEpsilon and tieEmbeddings are for llama: remove them").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name != 'llama' || !has(self.trainer.model.numKeyValueHeads) || (has(self.trainer.model.heads) ? self.trainer.model.heads : 12) % self.trainer.model.numKeyValueHeads == 0")
        .message("model.numKeyValueHeads must divide model.heads (default 12)").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name != 'llama' || ((has(self.trainer.model.width) ? self.trainer.model.width : 768) / (has(self.trainer.model.heads) ? self.trainer.model.heads : 12)) % 2 == 0")
        .message("model.width / model.heads must be even for llama (default 768; 12 heads)").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name == 'switch' || !(has(self.trainer.model.numExperts) || has(self.trainer.model.capacityFactor) || has(self.trainer.model.routerAuxLossCoef))")
        .message("model.numExperts, capacityFactor and routerAuxLossCoef are for switch: remove them").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name != 'switch' || !has(self.trainer.model.layers) || self.trainer.model.layers >= 2")
        .message("model.layers must be at least 2 for switch: every second block has experts").field_path(".trainer.model"),
    // The API server compares an integer with the whole part of a minimum, so 0 passes 0.1.
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.model.capacityFactor) || self.trainer.model.capacityFactor > 0.0")
        .message("model.capacityFactor must be at least 0.1").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.model.normEpsilon) || self.trainer.model.normEpsilon > 0.0")
        .message("model.normEpsilon must be more than 0").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.data.mix) || self.trainer.data.mix.all(p, p.weight > 0.0)")
        .message("the weight of each part of data.mix must be more than 0").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.model.batchNorm) || !has(self.trainer.model.ghostBatch) || (self.trainer.model.batchNorm == 'Ghost' && self.trainer.model.ghostBatch > 0)")
        .message("model.ghostBatch, at least 1, is for batchNorm Ghost: remove it with batchNorm Sync or PerRank").field_path(".trainer.model"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.model.batchNorm) || self.trainer.model.batchNorm != 'Sync' || !(has(self.trainer.microBatchSize) || has(self.trainer.slices) || (has(self.trainer.activationCheckpointing) && self.trainer.activationCheckpointing == 'Blocks'))")
        .message("model.batchNorm Sync needs the global batch in one pass, once: remove trainer.microBatchSize, slices and activationCheckpointing, or set model.batchNorm to Ghost").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !(self.trainer.model.name in ['gpt2', 'bert', 'llama', 'switch']) || self.trainer.data.format in ['tokens', 'text', 'parquet', 'custom']")
        .message("gpt2, bert, llama and switch read tokens: set data.format to tokens, text or parquet, or choose a model of images").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || self.trainer.model.name in ['gpt2', 'bert', 'llama', 'switch', 'custom'] || !(self.trainer.data.format in ['tokens', 'text'])")
        .message("data.format tokens and text are for gpt2, bert, llama and switch: choose one of these models, or a format of images").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || !(self.trainer.data.format in ['tokens', 'text']) || has(self.trainer.data.tokens)")
        .message("give data.tokens.context, the tokens of a sample: data.format tokens and text need it").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.data.mix) || size(self.trainer.data.mix) == 0 || (self.trainer.data.format != 'idx' && !has(self.trainer.data.train))")
        .message("data.mix takes the place of data.train: give one of them; IDX files have fixed names and cannot be mixed").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.lossScaling) || (has(self.trainer.precision) && self.trainer.precision == 'fp16')")
        .message("trainer.lossScaling is for precision fp16: remove it, or set trainer.precision to fp16").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.maxConsecutiveSkips) || (has(self.trainer.onNonFinite) && self.trainer.onNonFinite == 'Skip') || (has(self.trainer.precision) && self.trainer.precision == 'fp16')")
        .message("trainer.maxConsecutiveSkips counts skipped steps: set trainer.onNonFinite to Skip, or remove it").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.deterministic) || !self.trainer.deterministic || !has(self.trainer.cudnnBenchmark) || !self.trainer.cudnnBenchmark")
        .message("trainer.cudnnBenchmark chooses kernels by their time, which trainer.deterministic excludes: remove one of them").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.slices) || !has(self.trainer.ddp) || !has(self.trainer.ddp.compression) || self.trainer.ddp.compression == 'none'")
        .message("trainer.slices sums 32-bit gradients: remove trainer.ddp.compression, or trainer.slices").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.ddp) || !has(self.trainer.ddp.powerSGD) || (has(self.trainer.ddp.compression) && self.trainer.ddp.compression == 'PowerSGD')")
        .message("trainer.ddp.powerSGD is for compression PowerSGD: remove it, or set trainer.ddp.compression to PowerSGD").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.tensorboard) || !self.trainer.tensorboard || has(self.checkpoint)")
        .message("trainer.tensorboard writes beside the checkpoints: give checkpoint.volume, or remove it").field_path(".trainer"),
    validation = Rule::new("!has(self.trainer) || !has(self.checkpoint) || !has(self.checkpoint.best) || self.checkpoint.best.metric == 'loss' || self.trainer.model.name == 'custom' || (self.checkpoint.best.metric == 'perplexity') == (self.trainer.model.name in ['gpt2', 'bert', 'llama', 'switch'])")
        .message("checkpoint.best.metric must be loss, top1 or top5 for a model of images, and loss or perplexity for gpt2, bert, llama and switch").field_path(".checkpoint"),
    validation = Rule::new("has(self.trainer) || !has(self.checkpoint) || !has(self.checkpoint.best)")
        .message("leave out checkpoint.best: it is for the built-in trainer, which evaluates; a script of your own keeps its best state itself").field_path(".checkpoint"),
    validation = Rule::new("self.elastic.mode != 'Restart' || !has(self.checkpoint) || !has(self.checkpoint.local)")
        .message("leave out checkpoint.local: a script that restarts in each generation keeps its state itself").field_path(".checkpoint"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.data.volume) || has(self.trainer.data.volume.configMap) != has(self.trainer.data.volume.persistentVolumeClaim)")
        .message("give exactly one of data.volume.configMap, data.volume.persistentVolumeClaim").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.data.path) || !self.trainer.data.path.split('/').exists(part, part == '..')")
        .message("data.path must not contain '..'").field_path(".trainer.data"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.optimizer) || self.trainer.optimizer.learningRate > 0.0")
        .message("optimizer.learningRate must be above 0").field_path(".trainer.optimizer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.optimizer) || (self.trainer.optimizer.momentum < 1.0 && self.trainer.optimizer.beta1 < 1.0 && self.trainer.optimizer.beta2 < 1.0)")
        .message("optimizer.momentum, beta1 and beta2 must be below 1").field_path(".trainer.optimizer"),
    validation = Rule::new("!has(self.trainer) || !has(self.trainer.schedule) || self.trainer.schedule.gamma > 0.0")
        .message("schedule.gamma must be above 0").field_path(".trainer.schedule"),
)]
pub struct TrainingJobSpec {
    /// The controller that manages the job. With another value than the default, Roundhouse does
    /// not touch the job. Immutable.
    #[serde(default = "default_manager")]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: String,
    /// While this is true, the job has no pods. The workers write a checkpoint, if there is
    /// `spec.checkpoint`, and leave; deadlines do not run. When it is false again, training
    /// continues from the newest checkpoint, or starts at step 0 if there is none.
    #[serde(default)]
    pub suspend: bool,
    /// The workers: pods that train together.
    pub workers: Workers,
    /// The built-in trainer: model, data, optimizer and how long to train. Without it, the
    /// workers run the command of the container named `trainer` in `workers.template`: a Python
    /// script that calls `roundhouse.join()` or, with `elastic.mode: Restart`, any script that
    /// runs under torchrun. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::trainer")]
    pub trainer: Option<TrainerConfig>,
    /// Where the state of training is saved. Without it, training starts at step 0 after all
    /// workers are lost. Immutable while the job is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// How the workers are placed.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// How the set of workers changes while the job trains.
    #[serde(default)]
    pub elastic: Elastic,
    /// When failures end the job.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Seconds within which enough workers must be ready to train for the first time, or again
    /// after a suspension. After that the job fails, and the message says what it waited for (no
    /// node, no image, a script that does not call `roundhouse.join()`, ...). Time in which a
    /// scheduling gate holds the workers does not count. Default: no limit; a job that waits for a
    /// node is waiting, not failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub start_deadline_seconds: Option<u32>,
    /// Seconds without a new step after which a process counts as hung: its worker ends with exit
    /// code 76, and that is an incident. 0: never. Default: five times the longest step so far, and
    /// never less than 10 s more than the timeout of collectives (40 s; 15 min for a script). In
    /// mode Restart only this value counts, and only for scripts that report their progress.
    /// Immutable while the job is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub stall_timeout_seconds: Option<u32>,
    /// Seconds that the job may be active in total, from its acceptance, before it fails. Time in
    /// suspension does not count, nor time in which a scheduling gate holds workers that have not
    /// trained yet. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_deadline_seconds: Option<u32>,
    /// Seconds after its end, successful or not, until the operator deletes the TrainingJob with
    /// all that it owns: pods and their logs, Service, NetworkPolicy. Checkpoints stay. 0: at once.
    /// It may also be changed after the end. Default: the job stays until a user deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// Which pods are deleted when the job has ended. Failed jobs never keep a running pod.
    #[serde(default)]
    pub clean_pod_policy: CleanPodPolicy,
    /// Which workers must complete for the job to succeed. Immutable.
    #[serde(default)]
    pub success_policy: SuccessPolicy,
    /// Who may connect to the workers. Immutable.
    #[serde(default)]
    pub network_policy: NetworkPolicyMode,
}

fn default_manager() -> String {
    roundhouse_contract::labels::DEFAULT_MANAGER.to_owned()
}

/// The workers of a job.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// Number of wanted workers; `kubectl scale` changes it while the job trains.
    #[schemars(range(min = 1, max = 10_000))]
    pub replicas: u32,
    /// Fewest workers that train together. With fewer, they keep their state and wait. Default:
    /// `replicas`, so training waits for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub min_replicas: Option<u32>,
    /// Largest value that `replicas` may have. Default: no limit of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: Option<u32>,
    /// Additional workers that wait, prepared, in the lobby. When a member is lost, a spare takes
    /// its place at once, without waiting for a new pod; the pod that restarts or is created again
    /// becomes the next spare. Spares hold their GPUs and do not train. They count neither for
    /// `replicas` nor for `maxReplicas`. With `podsPerReplica` they are single pods, which start
    /// their processes only when they get a place in a replica, and are not Ready before.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub spares: u32,
    /// Training processes in each pod. Default: the number of GPUs in the trainer container's
    /// limits, or else 1. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub procs_per_worker: Option<u32>,
    /// Number of pods that hold one copy of the model together, for a model that does not fit into
    /// one pod. It needs `sharded` or `trainer.parallel`. `replicas`, `minReplicas`, `maxReplicas`,
    /// `kubectl scale` and the status then count replicas; `spares` counts pods. If a pod is lost,
    /// its replica leaves the generation, and its other pods restart their processes; the other
    /// replicas keep training. Default: 1. Immutable while the job is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub pods_per_replica: Option<u32>,
    /// The processes of a worker share one copy of the model, as one replica: by FSDP2, or by
    /// tensor, pipeline, context or expert parallelism. If one of them dies, all processes of the
    /// worker restart together, and the other workers keep training. It is for a Python script
    /// that calls `roundhouse.join()`. Default: false, so each process has its own copy, and a
    /// process that dies restarts alone. Immutable while the job is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharded: Option<bool>,
    /// Pod template of the workers: resources, node selection, volumes, image. The container named
    /// `trainer` runs the training. With the built-in trainer it may be left out; without it, it
    /// needs the image and the command of your script. Immutable while the job is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::pod_template")]
    pub template: Option<PodTemplateSpec>,
}

/// Which pods are deleted when the job has ended.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanPodPolicy {
    /// Pods that still run. Finished pods stay, with their logs. The workers of a failed job are
    /// deleted with their logs, because they would restart indefinitely; their termination messages
    /// are in the job's `Failed` condition and in `status.lastFailure`.
    #[default]
    Running,
    /// All pods of the job.
    All,
    /// No pod that has ended by itself. A pod that waits for a node or for peers is deleted,
    /// because it would keep its GPU indefinitely. So are all pods of a failed job that still run.
    None,
}

/// Which workers must complete for the job to succeed.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SuccessPolicy {
    /// All members of the newest generation. The built-in trainer completes on all of them
    /// together, so with it one is enough if the others have ended or do not end within 30 s.
    #[default]
    AllMembers,
    /// The worker of rank 0. Workers that still run are then deleted according to `cleanPodPolicy`.
    /// For scripts whose other ranks never end, or end later.
    RankZero,
}

/// Who may connect to the workers.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkPolicyMode {
    /// Only pods of the same job, and metrics scrapers on the metrics port.
    #[default]
    Isolated,
    /// The job has no NetworkPolicy.
    None,
}
