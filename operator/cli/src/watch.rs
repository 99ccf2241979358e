//! `watch`: follows a job until it ends.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use roundhouse_api::{ConditionType, TrainingJob};

use crate::cluster::Cluster;
use crate::command::{DELETED, INTERRUPTED, NOT_IN_TIME};
use crate::out::{self, Format, plain};
use crate::render::View;
use crate::screen::Screen;
use crate::view::exit;

const INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for a job that does not exist yet, and for an API server that stops answering.
const PATIENCE: Duration = Duration::from_secs(20);

/// Default of the option `--timeout`, in seconds.
pub(crate) const DEFAULT_SECONDS: u64 = 3_600;

/// Follows a job until it has ended. Ctrl-C stops following, and the job continues.
pub(crate) async fn watch(
    cluster: &Cluster,
    name: &str,
    timeout: Duration,
    output: Option<Format>,
) -> anyhow::Result<ExitCode> {
    let screen = output.map_or_else(Screen::new, Screen::of_documents);
    tokio::select! {
        ended = Box::pin(until_it_ends(cluster, name, timeout, screen)) => ended,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            out::aside(&format!(
                "{name} continues; `kubectl roundhouse watch {name}` follows it again"
            ));
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

async fn until_it_ends(
    cluster: &Cluster,
    name: &str,
    timeout: Duration,
    mut screen: Screen,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut seen = false;
    let mut answered = None::<Instant>;
    let mut furthest = None::<roundhouse_contract::Progress>;
    let mut incidents = None::<u32>;
    loop {
        let job = match cluster.job(name).await {
            // Keep following while the API server restarts.
            Err(_) if answered.is_some_and(|at| at.elapsed() < PATIENCE) => {
                tokio::time::sleep(INTERVAL).await;
                continue;
            }
            answer => answer?,
        };
        answered = Some(Instant::now());
        let Some(job) = job else {
            if seen {
                screen.close(&format!("{name} was deleted"));
                return Ok(ExitCode::from(DELETED));
            }
            if started.elapsed() > PATIENCE {
                anyhow::bail!(
                    "there is no TrainingJob {name} in namespace {}",
                    cluster.namespace()
                );
            }
            tokio::time::sleep(INTERVAL).await;
            continue;
        };
        seen = true;
        if let Some(words) = new_incident(&job, &mut incidents) {
            screen.note(&words);
        }
        let mut view = view(cluster, &job).await;
        // The status may be older than the last report of a worker.
        if let (Some(last), Some(now)) = (&furthest, &view.progress)
            && last.generation == now.generation
            && last.step > now.step
        {
            view.progress.clone_from(&furthest);
        }
        furthest.clone_from(&view.progress);
        if let Some(code) = end(&job) {
            screen.show_last(&view)?;
            screen.close(&view.end());
            return Ok(code);
        }
        screen.show(&view)?;
        if started.elapsed() > timeout {
            screen.close(&format!(
                "not ended after {} s: {}",
                timeout.as_secs(),
                view.line()
            ));
            return Ok(ExitCode::from(NOT_IN_TIME));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A message about the newest failure, if the number of incidents has grown since the last call.
fn new_incident(job: &TrainingJob, known: &mut Option<u32>) -> Option<String> {
    let status = job.status.as_ref()?;
    let total = status.incidents.total;
    let before = known.replace(total)?;
    let last = status.last_failure.as_ref().filter(|_| total > before)?;
    let code = last.exit_code;
    let code = code.map(|code| format!(" (exit code {code}: {})", exit::words(code, &last.reason)));
    let node = last.node.as_ref().map(|node| format!(" on node {node}"));
    let (node, code) = (node.unwrap_or_default(), code.unwrap_or_default());
    Some(plain(&format!(
        "Incident {total}: {}{node}: {}{code}",
        last.worker, last.reason
    )))
}

async fn view(cluster: &Cluster, job: &TrainingJob) -> View {
    let trains = job
        .status
        .as_ref()
        .is_some_and(|status| status.is_true(ConditionType::Running));
    let mut fresh = None;
    if trains && let Ok(Some(pod)) = cluster.first_worker(job).await {
        fresh = cluster.progress(&pod).await;
    }
    View::of(job, fresh)
}

fn end(job: &TrainingJob) -> Option<ExitCode> {
    let status = job.status.as_ref()?;
    if status.is_true(ConditionType::Succeeded) {
        return Some(ExitCode::SUCCESS);
    }
    status
        .is_true(ConditionType::Failed)
        .then_some(ExitCode::FAILURE)
}
