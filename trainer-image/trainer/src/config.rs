//! Reads the trainer's configuration: `spec.trainer` of the job as JSON.

use std::path::Path;

use roundhouse_contract::TrainerConfig;
use roundhouse_contract::environment::{EnvironmentInvalid, TRAINER_CONFIG_FILE};
use roundhouse_member::launch::Launch;

use crate::failure::Failure;

/// Reads and validates the configuration file of a launch.
///
/// # Errors
/// [`Failure::Environment`] if the launch names no file; else as [`read`].
pub fn of(launch: &Launch) -> Result<TrainerConfig, Failure> {
    let missing = EnvironmentInvalid {
        variable: TRAINER_CONFIG_FILE,
        found: None,
    };
    read(launch.config_file.as_deref().ok_or(missing)?)
}

/// Reads and validates a configuration file.
///
/// # Errors
/// [`Failure::ConfigFile`] with the path of the key when the file is missing, is not JSON or has
/// an unknown key; [`Failure::Config`] when a value cannot be run.
pub fn read(path: &Path) -> Result<TrainerConfig, Failure> {
    let refuse = |reason: String| Failure::ConfigFile {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    if text.trim().is_empty() {
        return Err(refuse("the file is empty".to_owned()));
    }
    let config = parse(&text).map_err(refuse)?;
    config.validate()?;
    Ok(config)
}

fn parse(text: &str) -> Result<TrainerConfig, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let config = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| format!("trainer.{}: {}", error.path(), error.inner()))?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::ExitCode;

    use super::*;

    fn refused(text: &str) -> Failure {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, text).unwrap();
        let failure = read(&path).unwrap_err();
        assert_eq!(failure.exit_code(), ExitCode::ConfigInvalid);
        failure
    }

    #[test]
    fn unknown_key_is_named_with_its_path() {
        let failure = refused(
            r#"{"model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8,
                "epochs": 1, "optimizer": {"lerningRate": 1}}"#,
        );
        let text = failure.to_string();
        assert!(text.contains("trainer.optimizer.lerningRate"), "{text}");
    }

    #[test]
    fn invalid_value_is_named() {
        let failure = refused(
            r#"{"model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 0,
                "epochs": 1}"#,
        );
        assert!(
            failure.to_string().contains("trainer.globalBatchSize"),
            "{failure}"
        );
    }

    #[test]
    fn missing_or_empty_file_is_named() {
        assert!(refused(" ").to_string().contains("empty"));
        let failure = read(Path::new("/nonexistent/config")).unwrap_err();
        assert!(
            failure.to_string().contains("/nonexistent/config"),
            "{failure}"
        );
    }
}
