//! The environment of a worker contains only fields whose edits the operator notices.

use std::path::PathBuf;

use roundhouse_api::fields::{Edit, FIELDS, Fingerprint};
use roundhouse_contract::environment::WorkerSite;
use roundhouse_planner::testing::{raw_job, raw_script_job};
use roundhouse_planner::{launch, validate};
use serde_json::{Value, json};

/// Another valid value of a field that may be edited and is not in the fingerprint.
fn another_value(path: &str) -> Value {
    match path {
        "suspend" => json!(true),
        "workers.replicas" | "workers.maxReplicas" => json!(6),
        "workers.minReplicas" | "workers.spares" => json!(2),
        "failurePolicy.rules" => json!([{"action": "FailJob", "onReasons": ["Crashed"]}]),
        "cleanPodPolicy" => json!("All"),
        "elastic.joinWindowSeconds"
        | "failurePolicy.backoffLimit"
        | "failurePolicy.maxIncidents"
        | "failurePolicy.maxReplacements"
        | "failurePolicy.avoidNodeSeconds"
        | "startDeadlineSeconds"
        | "activeDeadlineSeconds"
        | "ttlSecondsAfterFinished" => json!(77),
        _ => panic!("give another value of {path}: it must not change the environment"),
    }
}

fn variables(raw: &Value) -> Vec<(&'static str, String)> {
    let job = validate(&serde_json::from_value(raw.clone()).unwrap()).unwrap();
    let site = WorkerSite {
        address: None,
        rendezvous_port: 29_400,
        membership_file: PathBuf::new(),
        replica_place_file: "/etc/roundhouse/replica".into(),
        run_dir: PathBuf::new(),
        trainer_config_file: PathBuf::new(),
        data_dir: PathBuf::new(),
        checkpoint_dir: PathBuf::new(),
        copies_dir: PathBuf::new(),
        copy_pair_file: Some("/etc/roundhouse/copy-pair".into()),
        expected_device: None,
    };
    launch::environment(&job, 0, site).to_pairs()
}

#[test]
fn fields_outside_the_fingerprint_do_not_reach_workers() {
    for plain in [raw_job(4), raw_script_job(4)] {
        let plain = serde_json::to_value(plain).unwrap();
        for field in FIELDS {
            if field.edit == Edit::Never || field.fingerprint != Fingerprint::No {
                continue;
            }
            let path = field.path();
            let mut edited = plain.clone();
            let mut place = &mut edited["spec"];
            for name in path.split('.') {
                place = &mut place[name];
            }
            *place = another_value(&path);
            assert_ne!(edited, plain, "{path}: the value is the default");
            assert_eq!(variables(&edited), variables(&plain), "{path}");
        }
    }
}
