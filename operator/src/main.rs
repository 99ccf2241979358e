//! `roundhouse-operator`: see the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use roundhouse_operator::run;
use roundhouse_operator::settings::Settings;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::parse();
    run::init_logging(settings.log_format);
    match run::run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the operator cannot run");
            ExitCode::FAILURE
        }
    }
}
