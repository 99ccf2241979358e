//! `watch`: a job until it ends, as a bar on a terminal and as lines elsewhere.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use roundhouse_api::{ConditionType, TrainingJob};

use crate::cluster::Cluster;
use crate::render::View;
use crate::screen::Screen;

const INTERVAL: Duration = Duration::from_millis(500);
/// A job that is not there may be applied at this moment, and a server that is not, come back.
const PATIENCE: Duration = Duration::from_secs(20);

const NOT_IN_TIME: u8 = 2;
const DELETED: u8 = 3;

pub(crate) async fn watch(
    cluster: &Cluster,
    name: &str,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut screen = Screen::new();
    let mut seen = false;
    let mut answered = None::<Instant>;
    let mut furthest = None::<roundhouse_contract::Progress>;
    loop {
        let job = match cluster.job(name).await {
            // An API server that restarts is no reason to stop looking.
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
        let mut view = view(cluster, &job).await;
        // What is stored lags behind what a worker told a moment ago.
        if let (Some(last), Some(now)) = (&furthest, &view.progress)
            && last.generation == now.generation
            && last.step > now.step
        {
            view.progress.clone_from(&furthest);
        }
        furthest.clone_from(&view.progress);
        if let Some(code) = end(&job) {
            screen.close(&view.end());
            return Ok(code);
        }
        screen.show(&view);
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
