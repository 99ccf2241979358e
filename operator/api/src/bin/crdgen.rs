//! Prints the `CustomResourceDefinition` as YAML: `make crds` writes it to crds/.

use std::process::ExitCode;

use kube::CustomResourceExt;
use roundhouse_api::TrainingJob;

fn main() -> ExitCode {
    match serde_saphyr::to_string(&TrainingJob::crd()) {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write the CustomResourceDefinition: {error}");
            ExitCode::FAILURE
        }
    }
}
