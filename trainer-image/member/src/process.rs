//! The first and last actions of a process, whatever it trains.

use std::path::PathBuf;
use std::time::Duration;

use roundhouse_contract::environment::{END_WITH_PARENT, LOCAL_RANK, RUN_DIR};
use roundhouse_contract::{ExitCode, Reason, TerminationMessage};
use roundhouse_process_tree::is_ancestor;
use roundhouse_report::files::RunFiles;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::launch::Launch;
use roundhouse_report::say_error;

/// Interval at which a process that is not a child of its agent checks that the agent is alive.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Ends this process when its agent ends, if the environment (read through `get`) asks for it, and
/// now if the agent has ended already. A killed agent cannot end its processes, and they must not
/// continue alone. The agent may be the parent or a more distant ancestor: a shell, `uv run` or
/// another launcher may be between them.
pub fn end_with_agent(get: impl Fn(&str) -> Option<String>) {
    let Some(agent) = get(END_WITH_PARENT).and_then(|pid| pid.parse().ok()) else {
        return;
    };
    let is_parent = || getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == agent);
    if is_parent() {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if !is_parent() {
            // The agent ended before the call.
            end_without_agent();
        }
        return;
    }
    // The agent adopts orphans, so it stays an ancestor while it is alive.
    if !is_ancestor(agent) {
        end_without_agent();
    }
    let watch = move || {
        while is_ancestor(agent) {
            std::thread::sleep(POLL_INTERVAL);
        }
        end_without_agent();
    };
    let watcher = std::thread::Builder::new().name("agent-watch".to_owned());
    if let Err(error) = watcher.spawn(watch) {
        say_error(&format!("the agent cannot be watched: {error}"));
    }
}

fn end_without_agent() {
    say_error("the agent that started this process has ended");
    signal_hook::low_level::exit(ExitCode::Left.code());
}

/// Writes the last words of a process that was asked to leave if its step boundary, or the save
/// after it, does not come in time.
pub fn last_words(launch: &Launch) -> impl FnOnce(bool) + Send + use<> {
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

/// Reports a failure before a reporter exists. The environment, read through `get`, names the run
/// directory.
pub fn fail_early(code: ExitCode, words: &str, get: impl Fn(&str) -> Option<String>) {
    say_error(words);
    if let Some(run_dir) = get(RUN_DIR).map(PathBuf::from) {
        let local_rank = get(LOCAL_RANK).and_then(|text| text.parse().ok());
        RunFiles::new(&run_dir, local_rank.unwrap_or(0)).write_failure(&TerminationMessage {
            reason: Reason::of(code),
            rank: None,
            generation: 0,
            step: 0,
            message: words.to_owned(),
            progress: None,
        });
    }
}
