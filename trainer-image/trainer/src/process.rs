//! One process of a training: its launch, its run, and its exit code.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::Parser;
use roundhouse_contract::ExitCode;
use roundhouse_member::signals::LeaveRequest;
use roundhouse_member::{Launch, blocking, process};

use crate::audit;
use crate::cli::{Cli, Command};
use crate::export::{self, Which};
use crate::failure::Failure;
use crate::job::Build;
use crate::trainer::Trainer;

/// The main function of a trainer: reads the command line and the environment, trains the job that
/// `build` returns, and ends the process with an exit code for the result.
pub fn main(build: impl Build) -> ! {
    process::end_with_agent(variable);
    // Each peer needs file descriptors. In a worker the agent has raised the limit already; a
    // process that trains alone must raise it here.
    let _ = roundhouse_c10d::raise_descriptor_limit();
    blocking::count_those_of_library(roundhouse_c10d::num_abandoned);
    let code = match Cli::try_parse() {
        Ok(cli) => match cli.other_command() {
            Some(Command::Audit { dir, compare, json }) => match (dir, compare.as_deref()) {
                (_, Some([left, right])) => audit::compare::run(left, right),
                (Some(dir), _) => audit::run(dir, *json),
                // The command line requires exactly one of the two.
                (None, _) => ExitCode::ConfigInvalid,
            },
            Some(Command::Export {
                dir,
                out,
                best,
                checkpoint,
                all,
            }) => {
                let which = match (checkpoint, best) {
                    (Some(name), _) => Which::Named(name.clone()),
                    (None, true) => Which::Best,
                    (None, false) => Which::Newest,
                };
                export::run(dir, out, &which, *all)
            }
            None => match cli.launch(variable).and_then(|launch| run(launch, build)) {
                Ok(code) => code,
                Err(failure) => fail_early(&failure),
            },
        },
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() {
                ExitCode::ConfigInvalid
            } else {
                ExitCode::Done
            }
        }
    };
    // Do not run exit handlers: threads of libtorch may wait for peers, and libtorch's static
    // destructors wait for these threads. All files are written and all lines are flushed.
    signal_hook::low_level::exit(code.code())
}

fn run(launch: Launch, build: impl Build) -> Result<ExitCode, Failure> {
    let mut reporter = launch.reporter()?;
    set_threads(&launch);
    let leave = LeaveRequest::listen(launch.leave_budget, process::last_words(&launch))?;
    let train = || Trainer::prepare(launch, build, leave, &mut reporter)?.run();
    let result = catch_unwind(AssertUnwindSafe(train))
        .unwrap_or_else(|panic| Err(Failure::internal(panic_message(panic.as_ref()))));
    Ok(match result {
        Ok(()) => ExitCode::Done,
        Err(failure) => {
            reporter.fail(&failure.ending());
            failure.exit_code()
        }
    })
}

/// Reports a failure that happens before there is a reporter.
fn fail_early(failure: &Failure) -> ExitCode {
    let code = failure.exit_code();
    process::fail_early(code, &failure.to_string(), variable);
    code
}

/// Limits the threads of this process. Otherwise every process of a worker would use all its cores.
fn set_threads(launch: &Launch) {
    let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let num_threads = launch.num_threads(variable("OMP_NUM_THREADS").as_deref(), num_cores);
    tch::set_num_threads(i32::try_from(num_threads).unwrap_or(1));
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a defect: {}", text.unwrap_or("a panic without a message"))
}
