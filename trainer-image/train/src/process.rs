//! One process of a training: what it is told, what it does, how it ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use clap::Parser;
use roundhouse_contract::environment::{END_WITH_PARENT, LOCAL_RANK, RUN_DIR};
use roundhouse_contract::{ExitCode, Reason, TerminationMessage};
use roundhouse_member::Launch;
use roundhouse_member::report::files::RunFiles;
use roundhouse_member::report::{Reporter, say_error};
use roundhouse_member::signals::LeaveRequest;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::audit;
use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::job::Build;
use crate::trainer::Trainer;

/// The whole program of a trainer: reads the command line and the environment, trains what `build` returns, and ends
/// the process with the exit code that says how it ended.
pub fn main(build: impl Build) -> ! {
    if let Some(parent) = variable(END_WITH_PARENT) {
        // An agent that was killed cannot end its processes; they must not train on alone.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if getppid().map(|pid| pid.to_string()) != Some(parent) {
            // It was gone before that.
            signal_hook::low_level::exit(ExitCode::Left.code());
        }
    }
    // Each peer of a world takes descriptors. The agent raises the limit, too; a process alone has only itself.
    let _ = roundhouse_c10d::raise_descriptor_limit();
    let code = match Cli::try_parse() {
        Ok(cli) => match cli.other_command() {
            Some(Command::Audit { dir, compare }) => match (dir, compare.as_deref()) {
                (_, Some([left, right])) => audit::compare::run(left, right),
                (Some(dir), _) => audit::run(dir),
                // The command line has asked for one of the two.
                (None, _) => ExitCode::ConfigInvalid,
            },
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
    // Not the ordinary exit: libtorch's threads may be waiting for peers, and its static
    // destructors for them. All files are written and all lines flushed by now.
    signal_hook::low_level::exit(code.code())
}

fn run(launch: Launch, build: impl Build) -> Result<ExitCode, Failure> {
    let mut reporter = Reporter::new(&launch)?;
    set_threads(&launch);
    let leave = LeaveRequest::listen(launch.leave_budget, last_words(&launch))?;
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

/// What to write if the process is asked to leave and its step boundary, or the end of the save after it, does
/// not come in time.
fn last_words(launch: &Launch) -> impl FnOnce(bool) + Send + use<> {
    let files = launch
        .run_dir
        .as_deref()
        .map(|directory| RunFiles::new(directory, launch.local_rank));
    let dir = launch
        .checkpoint
        .as_ref()
        .map(|checkpoint| checkpoint.dir.clone());
    move |is_saving| {
        let message = match dir.filter(|_| is_saving) {
            Some(dir) => format!(
                "asked to leave; {}: the state of its last step was not saved in time",
                dir.display()
            ),
            None => "asked to leave; its peers neither left nor formed a generation without it"
                .to_owned(),
        };
        say_error(&message);
        let Some(files) = files else { return };
        let status = files.read_status();
        files.write_failure(&TerminationMessage {
            reason: Reason::of(ExitCode::Left),
            rank: status.as_ref().and_then(|status| status.rank),
            generation: status.as_ref().map_or(0, |status| status.generation),
            step: status.as_ref().map_or(0, |status| status.step),
            message,
            progress: None,
        });
    }
}

/// A failure before there is a reporter: as much of the environment as there is says where to
/// write it.
fn fail_early(failure: &Failure) -> ExitCode {
    let code = failure.exit_code();
    say_error(&failure.to_string());
    if let Some(run_dir) = variable(RUN_DIR).map(PathBuf::from) {
        let local_rank = variable(LOCAL_RANK).and_then(|text| text.parse().ok());
        RunFiles::new(&run_dir, local_rank.unwrap_or(0)).write_failure(&TerminationMessage {
            reason: Reason::of(code),
            rank: None,
            generation: 0,
            step: 0,
            message: failure.to_string(),
            progress: None,
        });
    }
    code
}

/// Without this every process of a worker would use all its cores.
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
