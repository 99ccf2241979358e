//! The planner refuses a job for each CEL rule of the `CustomResourceDefinition` that the job
//! breaks. `run --local` has no API server that evaluates the rules, and on a cluster the installed
//! schema may be older than the operator.

use roundhouse_planner::testing::{raw_job, raw_script_job};
use roundhouse_planner::validate;
use serde_json::{Value, json};

/// Start of a rule's message, the parts of the spec that break it, and whether the
/// job runs a script.
type Case = (&'static str, Value, bool);

fn of_model() -> Vec<(&'static str, Value)> {
    vec![
        ("give exactly one of trainer.epochs", json!({"steps": 5})),
        (
            "model.hidden",
            json!({"model": {"name": "cnn", "hidden": [8]}}),
        ),
        ("model.channels", json!({"model": {"channels": [8]}})),
        ("model.stem", json!({"model": {"stem": "cifar"}})),
        ("model.layers", json!({"model": {"layers": 2}})),
        (
            "model.heads",
            json!({"model": {"name": "gpt2", "heads": 7}, "data": {"format": "tokens", "tokens": {"context": 8}}}),
        ),
        (
            "model.numKeyValueHeads, innerWidth",
            json!({"model": {"ropeTheta": 10_000}}),
        ),
        (
            "model.numKeyValueHeads must divide",
            json!({"model": {"name": "llama", "numKeyValueHeads": 5}, "data": {"format": "parquet"}}),
        ),
        (
            "model.width / model.heads",
            json!({"model": {"name": "llama", "width": 36}, "data": {"format": "parquet"}}),
        ),
        (
            "model.layers must be at least 2 for switch",
            json!({"model": {"name": "switch", "layers": 1}, "data": {"format": "parquet"}}),
        ),
        ("model.numExperts", json!({"model": {"numExperts": 4}})),
        (
            "model.capacityFactor",
            json!({"model": {"name": "switch", "capacityFactor": 0}, "data": {"format": "parquet"}}),
        ),
        (
            "model.normEpsilon",
            json!({"model": {"name": "llama", "normEpsilon": 0}, "data": {"format": "parquet"}}),
        ),
        (
            "model.ghostBatch",
            json!({"model": {"name": "resnet18", "batchNorm": "Sync", "ghostBatch": 8}}),
        ),
        (
            "model.batchNorm Sync",
            json!({"model": {"name": "resnet18", "batchNorm": "Sync"}, "microBatchSize": 2}),
        ),
    ]
}

fn of_data_and_numbers() -> Vec<(&'static str, Value)> {
    vec![
        (
            "the weight of each part of data.mix",
            json!({"data": {"format": "webdataset", "mix": [{"train": "a", "weight": 0}]}}),
        ),
        (
            "gpt2, bert, llama and switch read tokens",
            json!({"model": {"name": "gpt2"}}),
        ),
        (
            "data.format tokens and text",
            json!({"data": {"format": "tokens", "tokens": {"context": 8}}}),
        ),
        (
            "give data.tokens.context",
            json!({"model": {"name": "gpt2"}, "data": {"format": "tokens"}}),
        ),
        (
            "data.mix",
            json!({"data": {"mix": [{"train": "a", "weight": 1}]}}),
        ),
        (
            "trainer.lossScaling",
            json!({"lossScaling": {"initial": 4}}),
        ),
        (
            "trainer.maxConsecutiveSkips",
            json!({"maxConsecutiveSkips": 3}),
        ),
        (
            "trainer.cudnnBenchmark",
            json!({"deterministic": true, "cudnnBenchmark": true}),
        ),
        (
            "trainer.slices",
            json!({"slices": 4, "ddp": {"compression": "fp16"}}),
        ),
        ("trainer.ddp.powerSGD", json!({"ddp": {"powerSGD": {}}})),
        ("trainer.tensorboard", json!({"tensorboard": true})),
        (
            "give exactly one of data.volume",
            json!({"data": {"volume": {}}}),
        ),
        ("data.path", json!({"data": {"path": "a/../b"}})),
        (
            "optimizer.learningRate",
            json!({"optimizer": {"learningRate": 0}}),
        ),
        ("optimizer.momentum", json!({"optimizer": {"momentum": 1}})),
        ("schedule.gamma", json!({"schedule": {"gamma": 0}})),
    ]
}

/// A checkpoint with local copies.
fn copies(size: &str) -> Value {
    json!({
        "volume": {"hostPath": {"path": "/a"}},
        "local": {"everySteps": 1, "sizeLimit": size},
    })
}

/// A checkpoint with local copies that other pods hold, too.
fn peer_copies() -> Value {
    let mut checkpoint = copies("4Gi");
    checkpoint["local"]["peerCopies"] = json!(1);
    checkpoint
}

/// Jobs whose processes share the model.
fn of_replicas() -> Vec<Case> {
    vec![
        (
            "workers.podsPerReplica is for",
            json!({"workers": {"podsPerReplica": 2}}),
            false,
        ),
        (
            "checkpoint.local.peerCopies needs another pod that holds the copies",
            json!({"checkpoint": peer_copies()}),
            false,
        ),
        (
            "workers.sharded is for",
            json!({"workers": {"sharded": true}}),
            true,
        ),
        (
            "leave out elastic.onScale ScaleBatch with trainer.parallel.pipeline",
            json!({
                "elastic": {"onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 2}},
                "trainer": {"parallel": {"pipeline": 2}},
                "workers": {"procsPerWorker": 2},
            }),
            false,
        ),
    ]
}

fn of_job() -> Vec<Case> {
    let host = |path: &str| json!({"volume": {"hostPath": {"path": path}}});
    let best =
        |metric: &str| json!({"volume": {"hostPath": {"path": "/a"}}, "best": {"metric": metric}});
    let template = |spec: Value| json!({"template": {"spec": spec}});
    vec![
        (
            "workers.minReplicas",
            json!({"workers": {"minReplicas": 3}}),
            false,
        ),
        (
            "workers.replicas",
            json!({"workers": {"maxReplicas": 1}}),
            false,
        ),
        (
            "scheduling.queueName",
            json!({"scheduling": {"queueName": "q"}}),
            false,
        ),
        (
            "workers.template has another priorityClassName",
            json!({
                "scheduling": {"priorityClassName": "high"},
                "workers": template(json!({"priorityClassName": "low"})),
            }),
            false,
        ),
        (
            "leave hostNetwork",
            json!({"workers": template(json!({"hostPID": true}))}),
            false,
        ),
        (
            "elastic.onScale ScaleBatch needs",
            json!({"elastic": {"onScale": "ScaleBatch"}}),
            false,
        ),
        (
            "elastic.onScale ScaleBatch is for",
            json!({"elastic": {"onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 2}}}),
            true,
        ),
        (
            "leave out trainer",
            json!({"elastic": {"mode": "Restart"}}),
            false,
        ),
        (
            "give trainer; or",
            json!({"workers": template(json!({"containers": []}))}),
            true,
        ),
        (
            "checkpoint.best.metric",
            json!({"checkpoint": best("perplexity")}),
            false,
        ),
        (
            "leave out checkpoint.best",
            json!({"checkpoint": best("loss")}),
            true,
        ),
        (
            "checkpoint.local.sizeLimit",
            json!({"checkpoint": copies("4GB")}),
            false,
        ),
        (
            "leave out checkpoint.local",
            json!({"checkpoint": copies("4Gi")}),
            true,
        ),
        (
            "give exactly one of checkpoint.volume",
            json!({"checkpoint": {"volume": {}}}),
            false,
        ),
        (
            "checkpoint.volume.hostPath.path",
            json!({"checkpoint": host("a")}),
            false,
        ),
        (
            "give exactly one of onExitCodes",
            json!({"failurePolicy": {"rules": [{"action": "Count"}]}}),
            false,
        ),
    ]
}

fn cases() -> Vec<Case> {
    let of_trainer = of_model().into_iter().chain(of_data_and_numbers());
    let of_trainer =
        of_trainer.map(|(message, fields)| (message, json!({ "trainer": fields }), false));
    of_trainer.chain(of_replicas()).chain(of_job()).collect()
}

/// Merges fields into a value. A list replaces a list.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// The messages of all rules about one job; rules about edits are left out.
fn messages(schema: &Value, all: &mut Vec<String>) {
    let rules = schema["x-kubernetes-validations"].as_array();
    for rule in rules.into_iter().flatten() {
        if !rule["rule"].as_str().unwrap().contains("oldSelf") {
            all.push(rule["message"].as_str().unwrap().to_owned());
        }
    }
    for (_, field) in schema["properties"].as_object().into_iter().flatten() {
        messages(field, all);
    }
    if schema["items"].is_object() {
        messages(&schema["items"], all);
    }
}

#[test]
fn planner_checks_every_cel_rule() {
    let crd = serde_json::to_value(roundhouse_api::crd().unwrap()).unwrap();
    let mut all = Vec::new();
    let schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema");
    messages(schema.unwrap(), &mut all);
    // The test below checks this rule.
    all.retain(|message| !message.starts_with("metadata.name"));
    let mut cases = cases();
    for message in &all {
        let at = cases
            .iter()
            .position(|(head, ..)| message.starts_with(head));
        let at = at.unwrap_or_else(|| panic!("add a job that breaks this rule: {message}"));
        let (_, spec, is_script) = cases.remove(at);
        let job = if is_script {
            raw_script_job(2)
        } else {
            raw_job(2)
        };
        let mut job = serde_json::to_value(job).unwrap();
        merge(&mut job["spec"], &spec);
        let job = serde_json::from_value(job).unwrap_or_else(|error| panic!("{message}: {error}"));
        assert!(validate(&job).is_err(), "{message}");
    }
    assert!(cases.is_empty(), "no rule: {cases:?}");
}

#[test]
fn name_that_the_api_server_refuses_is_refused() {
    for name in ["", "Digits", "1a", "a_b", "a.b", "a-", &"a".repeat(45)] {
        let mut job = raw_job(2);
        job.metadata.name = Some(name.to_owned());
        assert_eq!(validate(&job).unwrap_err().field, "metadata.name", "{name}");
    }
}
