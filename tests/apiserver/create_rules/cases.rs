//! Invalid values of the spec with a part of the refusal, and valid values close to them.

use serde_json::{Value, json};

/// A field of the spec, its invalid value, and a part of the API server's message.
pub(super) type Case = (&'static str, Value, &'static str);

pub(super) fn bad_specs() -> Vec<Case> {
    let claim = || json!({"persistentVolumeClaim": {"claimName": "c"}});
    let host = |path: &str| json!({"volume": {"hostPath": {"path": path}}});
    let rules = |rule: Value| json!({"rules": [rule]});
    let codes = |values: Value| json!({"action": "Count", "onExitCodes": {"operator": "In", "values": values}});
    let exactly_one = "give exactly one of onExitCodes, onPodConditions, onReasons";
    let one_volume = "give exactly one of checkpoint.volume";
    let absolute = "must be absolute and without '..'";
    vec![
        ("checkpoint", json!({"volume": {}}), one_volume),
        (
            "checkpoint",
            json!({"volume": {"hostPath": {"path": "/a"}, "persistentVolumeClaim": {"claimName": "c"}}}),
            one_volume,
        ),
        ("checkpoint", host("states"), absolute),
        ("checkpoint", host("/a/../etc"), absolute),
        (
            "checkpoint",
            json!({"volume": claim(), "keep": 1}),
            "checkpoint.keep",
        ),
        (
            "checkpoint",
            json!({"volume": claim(), "everySteps": 0}),
            "checkpoint.everySteps",
        ),
        ("checkpoint", json!({"everySteps": 10}), "checkpoint.volume"),
        (
            "failurePolicy",
            rules(json!({"action": "Count"})),
            exactly_one,
        ),
        (
            "failurePolicy",
            rules(json!({"action": "Count", "onReasons": ["Evicted"], "onPodConditions": ["x"]})),
            exactly_one,
        ),
        (
            "failurePolicy",
            rules(codes(json!([]))),
            "onExitCodes.values",
        ),
        (
            "failurePolicy",
            rules(codes(json!([0]))),
            "onExitCodes.values",
        ),
        (
            "failurePolicy",
            rules(codes(json!([256]))),
            "onExitCodes.values",
        ),
        (
            "failurePolicy",
            rules(json!({"action": "Retry", "onReasons": ["Evicted"]})),
            "failurePolicy.rules[0].action",
        ),
        (
            "failurePolicy",
            json!({"rules": vec![codes(json!([1])); 21]}),
            "failurePolicy.rules",
        ),
        (
            "failurePolicy",
            json!({"avoidNodeSeconds": 0}),
            "avoidNodeSeconds",
        ),
        ("failurePolicy", json!({"maxIncidents": -1}), "maxIncidents"),
        ("workers", json!({"replicas": 0}), "workers.replicas"),
        ("workers", json!({"replicas": -1}), "workers.replicas"),
        (
            "workers",
            json!({"replicas": 2_147_483_647_i64}),
            "workers.replicas",
        ),
        ("workers", json!({"replicas": "2"}), "workers.replicas"),
        (
            "workers",
            json!({"replicas": 1, "minReplicas": 2}),
            "minReplicas must not be above",
        ),
        (
            "workers",
            json!({"replicas": 2, "maxReplicas": 1}),
            "must not be above workers.maxReplicas",
        ),
        (
            "workers",
            json!({"replicas": 2, "sharded": true}),
            "workers.sharded is for a script of your own",
        ),
        ("activeDeadlineSeconds", json!(0), "activeDeadlineSeconds"),
        ("suspend", json!("yes"), "suspend"),
    ]
}

/// Values that would take too much memory in etcd or in a pod.
pub(super) fn too_large() -> Vec<Case> {
    let variable = |n: u32| json!({"name": format!("V{n}"), "value": "x"});
    let env: Vec<Value> = (0..10_000).map(variable).collect();
    vec![
        (
            "workers",
            json!({"replicas": 1, "template": {"metadata": {"annotations": {"notes": "x".repeat(1_400_000)}}}}),
            "Too long",
        ),
        (
            "workers",
            json!({"replicas": 1, "template": {"spec": {"containers": [{"name": "trainer", "env": env}]}}}),
            "env: Too many",
        ),
    ]
}

/// Fields of the pod template that the operator sets.
pub(super) fn bad_templates() -> Vec<Case> {
    let fields = [
        ("hostNetwork", json!(true)),
        ("hostPID", json!(true)),
        ("hostIPC", json!(true)),
        ("nodeName", json!("n1")),
        ("hostname", json!("h")),
        ("subdomain", json!("s")),
    ];
    let case = |(field, value): (&str, Value)| {
        let template = json!({"spec": {field: value}});
        let workers = json!({"replicas": 1, "template": template});
        ("workers", workers, "the operator decides them")
    };
    fields.map(case).to_vec()
}

pub(super) fn bad_scheduling() -> Vec<Case> {
    vec![
        ("scheduling", json!({"gang": "Slurm"}), "scheduling.gang"),
        (
            "scheduling",
            json!({"queueName": "research"}),
            "scheduling.queueName is a queue of Volcano",
        ),
    ]
}

pub(super) fn bad_scaling() -> Vec<Case> {
    vec![
        (
            "elastic",
            json!({"onScale": "ScaleBatch"}),
            "elastic.scaleBatch.referenceReplicas",
        ),
        (
            "elastic",
            json!({"scaleBatch": {"referenceReplicas": 1}}),
            "without ScaleBatch leave out elastic.scaleBatch",
        ),
        (
            "elastic",
            json!({"onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 0}}),
            "elastic.scaleBatch.referenceReplicas",
        ),
        (
            "elastic",
            json!({"onScale": "ScaleBatch", "scaleBatch": {"rule": "Linear"}}),
            "elastic.scaleBatch.referenceReplicas",
        ),
        (
            "elastic",
            json!({"mode": "Restart", "onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 1}}),
            "leave out trainer: with elastic.mode Restart",
        ),
    ]
}

/// Fields that are merged into `spec`, and a part of the API server's message.
pub(super) fn bad_models() -> Vec<(Value, &'static str)> {
    let model = |model: Value| json!({"trainer": {"model": model}});
    let of_tokens =
        |model: Value| json!({"trainer": {"model": model, "data": {"format": "parquet"}}});
    vec![
        (model(json!({"channels": [8]})), "is for a cnn: remove it"),
        (
            model(json!({"name": "resnet18", "hidden": [8]})),
            "is for an mlp: remove it",
        ),
        (
            model(json!({"ghostBatch": 8})),
            "are for resnet18 and resnet50",
        ),
        (
            model(json!({"name": "resnet18", "layers": 18})),
            "are for gpt2, bert, llama and switch",
        ),
        (
            json!({"trainer": {"model": {"name": "gpt2", "heads": 7}, "data": {"format": "tokens", "tokens": {"context": 8}}}}),
            "must divide model.width",
        ),
        (model(json!({"ropeTheta": 1e4})), "are for llama"),
        (
            of_tokens(json!({"name": "llama", "numKeyValueHeads": 5})),
            "must divide model.heads",
        ),
        (
            of_tokens(json!({"name": "llama", "width": 36})),
            "must be even for llama",
        ),
        (model(json!({"numExperts": 4})), "are for switch"),
        (
            of_tokens(json!({"name": "switch", "layers": 1})),
            "at least 2 for switch",
        ),
        (
            of_tokens(json!({"name": "switch", "capacityFactor": 0})),
            "must be at least 0.1",
        ),
        (
            of_tokens(json!({"name": "llama", "normEpsilon": 0})),
            "must be more than 0",
        ),
        (
            model(json!({"name": "resnet18", "batchNorm": "Sync", "ghostBatch": 8})),
            "is for batchNorm Ghost",
        ),
        (
            json!({"trainer": {"model": {"name": "resnet18", "batchNorm": "Sync"}, "microBatchSize": 4}}),
            "remove trainer.microBatchSize",
        ),
        (
            json!({"trainer": {"model": {"name": "resnet18", "batchNorm": "Sync"}, "activationCheckpointing": "Blocks"}}),
            "remove trainer.microBatchSize, slices and activationCheckpointing",
        ),
        (
            model(json!({"name": "gpt2"})),
            "gpt2, bert, llama and switch read tokens",
        ),
    ]
}

/// The same for other fields of a trainer.
pub(super) fn bad_trainers() -> Vec<(Value, &'static str)> {
    let data = |data: Value| json!({"trainer": {"data": data}});
    let best = |metric: &str| json!({"checkpoint": {"volume": {"hostPath": {"path": "/a"}}, "best": {"metric": metric}}});
    let mix = json!([{"train": "a", "weight": 1.0}]);
    vec![
        (
            data(json!({"format": "tokens", "tokens": {"context": 8}})),
            "are for gpt2, bert, llama and switch",
        ),
        (
            json!({"trainer": {"model": {"name": "gpt2"}, "data": {"format": "tokens"}}}),
            "give data.tokens.context",
        ),
        (data(json!({"mix": mix})), "IDX files"),
        (
            data(json!({"format": "webdataset", "mix": [{"train": "a", "weight": 0}]})),
            "weight of each part of data.mix must be more than 0",
        ),
        (
            data(json!({"format": "webdataset", "mix": mix, "train": "b"})),
            "takes the place of data.train",
        ),
        (
            json!({"trainer": {"precision": "bf16", "lossScaling": {"initial": 8.0}}}),
            "is for precision fp16",
        ),
        (
            json!({"trainer": {"maxConsecutiveSkips": 5}}),
            "set trainer.onNonFinite to Skip",
        ),
        (
            json!({"trainer": {"deterministic": true, "cudnnBenchmark": true}}),
            "remove one of them",
        ),
        (
            json!({"trainer": {"slices": 4, "ddp": {"compression": "bf16"}}}),
            "remove trainer.ddp.compression",
        ),
        (
            json!({"trainer": {"slices": 4, "ddp": {"compression": "PowerSGD"}}}),
            "remove trainer.ddp.compression",
        ),
        (
            json!({"trainer": {"ddp": {"compression": "bf16", "powerSGD": {"rank": 4}}}}),
            "set trainer.ddp.compression to PowerSGD",
        ),
        (
            json!({"trainer": {"tensorboard": true}}),
            "give checkpoint.volume",
        ),
        (
            json!({"workers": {"template": {"spec": {"priorityClassName": "low"}}}, "scheduling": {"priorityClassName": "high"}}),
            "another priorityClassName than scheduling",
        ),
        (best("perplexity"), "top1 or top5 for a model of images"),
    ]
}

/// Fields that the same rules accept.
pub(super) fn good_trainers() -> Vec<Value> {
    let volume = json!({"hostPath": {"path": "/a"}});
    let tokens = json!({"format": "tokens", "tokens": {"context": 8}});
    vec![
        json!({"trainer": {"model": {"name": "resnet18", "stem": "cifar", "ghostBatch": 0}, "slices": 4, "microBatchSize": 2}}),
        json!({"trainer": {"model": {"name": "resnet18", "batchNorm": "Sync"}, "precision": "fp16", "lossScaling": {"initial": 8.0}}}),
        json!({"trainer": {"model": {"name": "gpt2", "width": 64, "heads": 4}, "data": tokens, "ddp": {"compression": "bf16"}}}),
        json!({"trainer": {"data": {"format": "webdataset", "mix": [{"train": "a", "weight": 1.0}]}, "tensorboard": true},
            "checkpoint": {"volume": volume, "best": {"metric": "top1"}}}),
        json!({"trainer": {"model": {"name": "llama", "heads": 8, "numKeyValueHeads": 2, "width": 64, "innerWidth": 160,
            "ropeTheta": 500_000, "normEpsilon": 1e-6, "tieEmbeddings": true}, "data": {"format": "parquet"}}}),
        json!({"trainer": {"model": {"name": "switch", "layers": 2, "numExperts": 4, "capacityFactor": 2, "routerAuxLossCoef": 0.001},
            "data": {"format": "parquet"}}}),
        json!({"trainer": {"onNonFinite": "Skip", "maxConsecutiveSkips": 5}}),
        json!({"trainer": {"ddp": {"compression": "PowerSGD", "powerSGD": {"rank": 4}}}}),
        json!({"workers": {"template": {"spec": {"priorityClassName": "low"}}}, "scheduling": {"priorityClassName": "low"}}),
        json!({"scheduling": {"gang": "Volcano", "queueName": "research"}}),
        json!({"workers": {"template": {"metadata": {"labels": {"team": "vision"}}}}}),
        json!({"workers": {"template": {"spec": {"hostNetwork": false, "hostPID": false, "hostIPC": false}}}}),
    ]
}
