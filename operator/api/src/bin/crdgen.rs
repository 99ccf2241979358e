//! Prints the `CustomResourceDefinition` as YAML: `make generate` writes it to crds/.

use std::process::ExitCode;

fn main() -> ExitCode {
    let yaml = roundhouse_api::crd()
        .map_err(|error| error.to_string())
        .and_then(|crd| serde_saphyr::to_string(&crd).map_err(|error| error.to_string()));
    match yaml {
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
