//! Invalid configurations, arguments and environments are refused with the name of the value.

use roundhouse_contract::Reason;
use serde_json::json;

use crate::harness::{Job, config, digits, trainer};

#[test]
fn unknown_key_is_named() {
    let mut config = config();
    config["optimizer"]["lerningRate"] = json!(1);
    let mut job = Job::start(&config, &digits(), 1, 1);
    assert_eq!(job.exit_codes(), [Some(64)]);
    let failure = job.failure(0, 0);
    assert_eq!(failure.reason, Reason::ConfigInvalid);
    assert!(
        failure.message.contains("lerningRate"),
        "{}",
        failure.message
    );
}

#[test]
fn model_that_does_not_fit_the_images_is_named() {
    let mut config = config();
    config["model"] = json!({"name": "cnn", "channels": [4, 4, 4, 4]});
    let mut job = Job::start(&config, &digits(), 1, 1);
    assert_eq!(job.exit_codes(), [Some(64)]);
    let message = job.failure(0, 0).message;
    assert!(
        message.contains("model.channels") && message.contains("at most 3"),
        "{message}"
    );
}

#[test]
fn missing_variable_is_named() {
    let output = trainer().output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("LOCAL_RANK"));
}

#[test]
fn unknown_argument_is_invalid_and_help_succeeds() {
    assert_eq!(
        trainer().arg("--nonsense").output().unwrap().status.code(),
        Some(64)
    );
    assert_eq!(
        trainer().arg("--help").output().unwrap().status.code(),
        Some(0)
    );
}
