//! New jobs that the API server itself refuses, by schema and CEL rules, and how it says so.

use kube::api::PostParams;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, job};

/// The spec's part, what it becomes, and words of the refusal.
type Case = (&'static str, Value, &'static str);

fn bad_specs() -> Vec<Case> {
    let claim = || json!({"persistentVolumeClaim": {"claimName": "c"}});
    let host = |path: &str| json!({"volume": {"hostPath": {"path": path}}});
    let rules = |rule: Value| json!({"rules": [rule]});
    let codes = |values: Value| json!({"action": "Count", "onExitCodes": {"operator": "In", "values": values}});
    let exactly_one = "give exactly one of onExitCodes, onPodConditions, onReasons";
    let one_volume = "give exactly one of checkpoint.volume";
    vec![
        ("checkpoint", json!({"volume": {}}), one_volume),
        (
            "checkpoint",
            json!({"volume": {"hostPath": {"path": "/a"}, "persistentVolumeClaim": {"claimName": "c"}}}),
            one_volume,
        ),
        (
            "checkpoint",
            host("states"),
            "must be absolute and without '..'",
        ),
        (
            "checkpoint",
            host("/a/../etc"),
            "must be absolute and without '..'",
        ),
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
        ("activeDeadlineSeconds", json!(0), "activeDeadlineSeconds"),
        ("suspend", json!("yes"), "suspend"),
    ]
}

/// What would fill the API server, or a pod.
fn too_large() -> Vec<Case> {
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

/// Fields of the template that the operator decides.
fn bad_templates() -> Vec<Case> {
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

fn bad_scheduling() -> Vec<Case> {
    vec![
        ("scheduling", json!({"gang": "Slurm"}), "scheduling.gang"),
        (
            "scheduling",
            json!({"queueName": "research"}),
            "scheduling.queueName is a queue of Volcano",
        ),
    ]
}

fn bad_scaling() -> Vec<Case> {
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

/// What is merged into `spec`, and words of the refusal.
fn bad_trainers() -> Vec<(Value, &'static str)> {
    let model = |model: Value| json!({"trainer": {"model": model}});
    let data = |data: Value| json!({"trainer": {"data": data}});
    let best = |metric: &str| json!({"checkpoint": {"volume": {"hostPath": {"path": "/a"}}, "best": {"metric": metric}}});
    let mix = json!([{"train": "a", "weight": 1.0}]);
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
            "are for gpt2 and bert",
        ),
        (
            json!({"trainer": {"model": {"name": "gpt2", "heads": 7}, "data": {"format": "tokens", "tokens": {"context": 8}}}}),
            "must divide model.width",
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
        (model(json!({"name": "gpt2"})), "gpt2 and bert read tokens"),
        (
            data(json!({"format": "tokens", "tokens": {"context": 8}})),
            "are for gpt2 and bert",
        ),
        (
            json!({"trainer": {"model": {"name": "gpt2"}, "data": {"format": "tokens"}}}),
            "give data.tokens.context",
        ),
        (data(json!({"mix": mix})), "IDX files"),
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

/// What the same rules let pass.
fn good_trainers() -> Vec<Value> {
    let volume = json!({"hostPath": {"path": "/a"}});
    let tokens = json!({"format": "tokens", "tokens": {"context": 8}});
    vec![
        json!({"trainer": {"model": {"name": "resnet18", "stem": "cifar", "ghostBatch": 0}, "slices": 4, "microBatchSize": 2}}),
        json!({"trainer": {"model": {"name": "resnet18", "batchNorm": "Sync"}, "precision": "fp16", "lossScaling": {"initial": 8.0}}}),
        json!({"trainer": {"model": {"name": "gpt2", "width": 64, "heads": 4}, "data": tokens, "ddp": {"compression": "bf16"}}}),
        json!({"trainer": {"data": {"format": "webdataset", "mix": [{"train": "a", "weight": 1.0}]}, "tensorboard": true},
            "checkpoint": {"volume": volume, "best": {"metric": "top1"}}}),
        json!({"trainer": {"onNonFinite": "Skip", "maxConsecutiveSkips": 5}}),
        json!({"trainer": {"ddp": {"compression": "PowerSGD", "powerSGD": {"rank": 4}}}}),
        json!({"workers": {"template": {"spec": {"priorityClassName": "low"}}}, "scheduling": {"priorityClassName": "low"}}),
        json!({"scheduling": {"gang": "Volcano", "queueName": "research"}}),
        json!({"workers": {"template": {"metadata": {"labels": {"team": "vision"}}}}}),
        json!({"workers": {"template": {"spec": {"hostNetwork": false, "hostPID": false, "hostIPC": false}}}}),
    ]
}

/// A job whose spec has these fields besides its own.
fn with(fields: &Value) -> Value {
    fn merge(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }
    let mut changed = job(1);
    merge(&mut changed["spec"], fields);
    changed
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictory_trainer_names_the_field_to_remove() {
    let env = Environment::new().await;
    for (fields, words) in bad_trainers() {
        let message = refusal(&env, &with(&fields)).await;
        assert!(message.contains(words), "{fields}: {message}");
    }
    let mut script = job(1);
    let template =
        json!({"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["b"]}]}});
    script["spec"] = json!({
        "workers": {"replicas": 1, "template": template}, "elastic": {"mode": "Restart"},
        "checkpoint": {"volume": {"hostPath": {"path": "/a"}}, "best": {"metric": "loss"}},
    });
    let message = refusal(&env, &script).await;
    assert!(message.contains("leave out checkpoint.best"), "{message}");
    for mode in ["Restart", "InProcess"] {
        script["spec"]["elastic"] =
            json!({"mode": mode, "onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 1}});
        let message = refusal(&env, &script).await;
        assert!(message.contains("is for the built-in trainer"), "{message}");
    }
    script["spec"]["workers"]["template"]["spec"] = json!({"priorityClassName": "low"});
    let message = refusal(&env, &script).await;
    assert!(message.contains("a container named trainer"), "{message}");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for fields in good_trainers() {
        let good = serde_json::from_value(with(&fields)).unwrap();
        let created = env.jobs(NAMESPACE).create(&dry, &good).await;
        assert!(created.is_ok(), "{fields}: {created:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_spec_is_refused_with_advice() {
    let env = Environment::new().await;
    let all = [
        bad_specs(),
        too_large(),
        bad_templates(),
        bad_scheduling(),
        bad_scaling(),
    ];
    for (field, value, words) in all.into_iter().flatten() {
        let mut wrong = job(1);
        wrong["spec"][field] = value.clone();
        let message = refusal(&env, &wrong).await;
        assert!(message.contains(words), "{field}: {value}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_characters_are_refused() {
    let env = Environment::new().await;
    for text in ["a\nb", "a\u{0}b", "a\u{1b}[2Jb"] {
        let mut wrong = job(1);
        wrong["metadata"]["name"] = json!(text);
        let message = refusal(&env, &wrong).await;
        assert!(message.contains("metadata.name"), "{text:?}: {message}");
        let mut wrong = job(1);
        wrong["metadata"]["labels"] = json!({"team": text});
        let message = refusal(&env, &wrong).await;
        assert!(message.contains("metadata.labels"), "{text:?}: {message}");
    }
}

/// The API server's words about an object that it refuses. Sent as it stands: the types would not have it.
async fn refusal(env: &Environment, job: &Value) -> String {
    let path = format!("/apis/roundhouse.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs");
    let request = kube::core::Request::new(path);
    let body = serde_json::to_vec(job).unwrap();
    let request = request.create(&PostParams::default(), body).unwrap();
    match env.client.request::<Value>(request).await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("{job}: {other:?}"),
    }
}
