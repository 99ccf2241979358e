//! `kubectl roundhouse`: runs, follows, explains and controls TrainingJobs from a terminal.

// The print macros panic when the reader has closed the pipe: use `out::line` and `out::aside`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod cluster;
mod command;
mod convert;
mod facts;
mod gpus;
mod local;
mod logs;
mod out;
mod plot;
mod random;
mod redact;
mod render;
mod screen;
mod strict;
#[cfg(test)]
mod testing;
mod ui;
mod view;
mod watch;
mod why;

use std::process::ExitCode;
use std::time::Duration;

use arguments::{Arguments, Command};
use cluster::Cluster;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let result = Box::pin(run(arguments::parse())).await;
    result.unwrap_or_else(|error| {
        if is_closed_pipe(&error) {
            // The reader, such as `head`, has closed the pipe: that is not an error.
            return ExitCode::SUCCESS;
        }
        let text = format!("{error:#}");
        let lines = text.lines().map(out::plain).collect::<Vec<_>>();
        out::aside(&format!("error: {}", lines.join("\n")));
        ExitCode::FAILURE
    })
}

async fn run(arguments: Arguments) -> command::Outcome {
    let Arguments { place, command } = arguments;
    let connect = || Cluster::connect(&place);
    match command {
        Command::Submit(options) => command::submit::run(&connect().await?, &options).await,
        Command::Status(options) => command::status::run(&connect().await?, &options).await,
        Command::Why(options) => command::why::run(&connect().await?, &options).await,
        Command::Watch {
            name,
            timeout,
            output,
        } => {
            let timeout = Duration::from_secs(timeout);
            watch::watch(&connect().await?, &name, timeout, output).await
        }
        Command::Top(options) => command::top::run(&connect().await?, &options).await,
        Command::Logs(options) => command::logs::run(&connect().await?, &options).await,
        Command::Plot(options) => command::plot::run(&connect().await?, &options).await,
        Command::Scale(options) => command::change::scale(&connect().await?, &options).await,
        Command::Suspend(options) => command::change::suspend(&connect().await?, &options).await,
        Command::Resume(options) => command::change::resume(&connect().await?, &options).await,
        Command::Stop(options) => command::change::stop(&connect().await?, &options).await,
        Command::Report(options) => {
            Box::pin(command::report::run(&connect().await?, &options)).await
        }
        Command::Convert(options) => command::convert::run(&options),
        Command::Run(options) => Box::pin(local::run(&options)).await,
        Command::Metrics {
            name,
            filter,
            output,
        } => command::metrics::print(&connect().await?, &name, &filter, output).await,
        Command::Ui(options) => Box::pin(command::ui::run(&place, &options)).await,
        Command::Completion(options) => {
            let called = std::env::args().next().unwrap_or_default();
            command::completion::run(arguments::command(&called), &options)
        }
        Command::Complete(options) => {
            let called = std::env::args().next().unwrap_or_default();
            command::complete::run(&arguments::command(&called), &options).await
        }
        Command::Version(options) => command::version::run(&place, &options).await,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
