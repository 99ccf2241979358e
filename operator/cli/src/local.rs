//! `run --local`: runs a job on this machine, without a cluster. The operator's planner plans
//! processes instead of pods: observe → validate → plan → apply → report, every 10 ms.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_api::{Scheduling, TrainingJob, TrainingJobStatus};
use roundhouse_contract::Progress;
use roundhouse_planner::status::counted;
use roundhouse_planner::{Observed, Plan, ProgressSample, ValidatedJob, is_in_new_trouble, plan};
use tokio::signal::unix::{SignalKind, signal};

use crate::command::INTERRUPTED;
use crate::gpus::GpuNames;
use crate::out::{line, plain};
use crate::random;
use crate::render::View;
use crate::screen::Screen;

mod capacity;
mod custom_command;
mod edits;
mod executor;
mod hangup;
mod launch;
mod launch_plan;
mod manifest;
mod memory;
mod orphans;
mod pids;
mod probe;
mod programs;
pub(crate) mod record;
mod run_directory;
mod worker;

use edits::Edits;
use executor::Executor;
use hangup::Hangup;
use manifest::Manifest;
use record::recorder::Recorder;
use run_directory::{Outcome, RunDirectory};

const TICK: Duration = Duration::from_millis(10);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Run the job's workers as processes on this machine. (For a cluster:
    /// `kubectl apply -f FILE`.)
    #[arg(long, required = true)]
    local: bool,
    /// The file with the job, and with the ConfigMap of its data if it has one. A job without
    /// `spec.trainer` runs the command of its template with the programs of this environment, in
    /// the current directory; its image is not used. To rescale the running job, save the file with
    /// another `spec.workers.replicas`. `spec.suspend: true` suspends the job, and `false` resumes
    /// it.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// Name of the job to run, if the file has several jobs.
    #[arg(long)]
    name: Option<String>,
    /// Directory with the job's data, instead of the volume that the file names.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Directory for logs, checkpoints and ledger. It stays after the run, and a later run with it
    /// continues from the newest checkpoint. Default: a temporary directory, of which only the logs
    /// of a failed job stay. `ui --local DIR` shows the run in a browser.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the final weights to this file, as safetensors.
    #[arg(long, value_name = "FILE")]
    save_weights: Option<PathBuf>,
    #[command(flatten)]
    gpus: GpuNames,
    /// The agent's program. Default: `roundhouse-agent` beside this program, else on the PATH.
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The trainer's program. Default: `roundhouse-train` beside this program, else on the PATH.
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,
}

/// Runs a job until it ends. The exit codes are those of `watch`.
pub(crate) async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let dir = options
        .dir
        .as_deref()
        .map(run_directory::locate)
        .transpose()?;
    let options = &Options {
        dir,
        ..options.clone()
    };
    let mut manifest = Manifest::read(&options.file, options.name.as_deref())?;
    launch_plan::keep_state(&mut manifest.job, options);
    manifest.job.metadata.uid = Some(launch_plan::run_uid());
    let job = validated(&manifest.job, &options.gpus)?;
    capacity::check(&job)?;
    let run_directory = RunDirectory::make(options.dir.as_deref())?;
    let launch_plan = launch_plan::of(options, &manifest, &job, &run_directory)?;
    let name = job.identity.name.clone();
    let begins = format!(
        "{name}: {} on this machine, without a cluster{}; logs: {}",
        counted(job.replicas, "worker"),
        match manifest.job.spec.workers.pods_per_replica {
            Some(pods) if pods > 1 =>
                format!(", each with the processes of {}", counted(pods, "pod")),
            Some(_) | None => String::new(),
        },
        run_directory.logs().display()
    );
    let page = format!(
        "See it in a browser: kubectl-roundhouse ui --local {}",
        run_directory.path().display()
    );
    let lines = custom_command::unused(&job)
        .into_iter()
        .chain(run_directory.resumes());
    let mut lines = std::iter::once(begins).chain(lines).chain([page]);
    if lines.try_for_each(|text| line(&text)).is_err() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let mut run = Run {
        edits: Edits::of(options),
        executor: Executor::new(&name, launch_plan),
        job: manifest.job,
        valid: job,
        last: None,
        wake_at: None,
        progress_at: Instant::now(),
        progress: None,
        screen: Screen::new(),
        is_unread: false,
        recorder: Recorder::begin(run_directory.path())?,
    };
    roundhouse_process_tree::adopt_orphans()?;
    let code = run.until_it_ends().await;
    let (fails, stopped) = (run.fails(), run.stopped_before());
    run.record(true);
    // After an error, too, no worker may outlive this program.
    run.executor.kill();
    let mut supervised = Ok(());
    while supervised.is_ok() && run.executor.num_workers() > 0 {
        supervised = run.executor.supervise();
        tokio::time::sleep(TICK).await;
    }
    let code = supervised.and(code);
    let outcome = match code {
        Ok(0) => stopped.map_or(Outcome::Succeeded, |total| Outcome::Stopped { total }),
        Ok(INTERRUPTED) if fails => Outcome::GivenUp,
        Ok(INTERRUPTED) => Outcome::Interrupted,
        Ok(_) | Err(_) => Outcome::Failed,
    };
    let words = run_directory.close(outcome);
    // A closed terminal must not change the exit code.
    let _ = line(&words);
    code.map(ExitCode::from)
}

/// The validated job without scheduling fields: all processes run on this machine. A replica of
/// several pods runs as one worker.
fn validated(job: &TrainingJob, gpus: &GpuNames) -> anyhow::Result<ValidatedJob> {
    let job = gpus.validate(job)?;
    Ok(ValidatedJob {
        scheduling: Scheduling::default(),
        spares: job.spares.div_ceil(job.pods_per_replica),
        pods_per_replica: 1,
        ..job.with_replicas_as_workers()
    })
}

/// Whether no step was committed since an incident, or a worker failed before the first generation.
/// The planner updates its count only with the next incident.
fn is_stuck(status: &TrainingJobStatus, progress: Option<&Progress>) -> bool {
    let step = progress.map_or(0, |progress| progress.step);
    let has_begun = status.membership.is_some();
    let is_repeated = status.incidents.since_progress > 0 && step <= status.incidents.last_step;
    is_repeated || !has_begun && status.last_failure.is_some()
}

struct Run {
    edits: Edits,
    executor: Executor,
    job: TrainingJob,
    valid: ValidatedJob,
    last: Option<Observed>,
    wake_at: Option<Instant>,
    progress_at: Instant,
    progress: Option<Progress>,
    screen: Screen,
    /// Whether the reader of standard output has closed it, as `head` does after its lines. The run
    /// then ends as if its terminal were closed.
    is_unread: bool,
    recorder: Recorder,
}

impl Run {
    async fn until_it_ends(&mut self) -> anyhow::Result<u8> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = Hangup::listen()?;
        loop {
            self.executor.supervise()?;
            for words in self.executor.new_problems() {
                self.screen.note(&format!("  {words}"));
            }
            let edited = self
                .edits
                .poll(&self.job, self.executor.launch_plan(), &self.screen);
            if let Some(edits::Edited {
                job,
                valid,
                launch_plan,
            }) = edited
            {
                (self.job, self.valid) = (job, valid);
                self.executor.set_launch_plan(launch_plan);
                self.last = None;
            }
            self.plan()?;
            if let Some(code) = self.end() {
                return Ok(code);
            }
            if self.is_unread {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                () = hangup.recv() => break,
            }
        }
        let names: Vec<&str> = self.executor.names().collect();
        let asked = format!("asked to leave: {} (again to kill)", names.join(", "));
        let none = names.is_empty();
        self.screen
            .close(if none { "no worker runs" } else { &asked });
        self.executor.ask_to_leave();
        while self.executor.num_workers() > 0 {
            self.executor.supervise()?;
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                _ = interrupt.recv() => self.executor.kill(),
                _ = terminate.recv() => self.executor.kill(),
                () = hangup.recv() => self.executor.kill(),
            }
        }
        Ok(INTERRUPTED)
    }

    /// Whether the job makes no progress because of a failure.
    fn fails(&self) -> bool {
        let waits = |observed: &Observed| {
            observed
                .pods
                .iter()
                .any(|pod| pod.container.waiting.is_some())
        };
        let status = self.job.status.as_ref();
        status.is_some_and(|status| is_stuck(status, self.progress.as_ref()))
            || self.last.as_ref().is_some_and(waits)
    }

    /// The number of steps of a script that has completed after fewer.
    fn stopped_before(&self) -> Option<u64> {
        let progress = self.progress.as_ref()?;
        let is_script = self.valid.program.trainer().is_none();
        (is_script && progress.step < progress.total_steps).then_some(progress.total_steps)
    }

    /// If the observed state has changed, plans and applies until it no longer changes.
    fn plan(&mut self) -> anyhow::Result<()> {
        if self.progress_at <= Instant::now() && self.last.is_some() {
            self.progress_at = Instant::now() + PROGRESS_INTERVAL;
            self.show();
        }
        loop {
            let status = self.job.status.clone().unwrap_or_default();
            let observed = self.executor.observe(&status);
            let is_due = self.wake_at.is_some_and(|at| at <= Instant::now());
            if self.last.as_ref() == Some(&observed) && !is_due {
                return Ok(());
            }
            self.last = Some(observed.clone());
            let with_progress = Observed {
                progress: self.executor.progress(),
                nonce: random::hex::<16>()?,
                ..observed
            };
            let Plan {
                actions,
                status,
                requeue_after,
                reason: _,
                events,
                seen_replacements: _,
                needs_fresh: _,
            } = plan(&self.valid, &with_progress, Timestamp::now());
            self.wake_at = requeue_after.map(|after| Instant::now() + after);
            self.executor.apply(&actions)?;
            self.job.status = Some(status);
            self.list_processes();
            for event in events {
                self.recorder.note(&self.job, &event);
                let words = format!("  {}: {}", event.reason, plain(&event.message));
                self.screen.note(&words);
            }
        }
    }

    fn list_processes(&mut self) {
        if let Some(line) = self.executor.new_processes() {
            self.screen.note(&format!("  {line}"));
        }
    }

    fn show(&mut self) {
        // A script in restart mode starts some time after its generation has formed.
        self.list_processes();
        if let Some(ProgressSample { progress, at: _ }) = self.executor.progress() {
            let status = self.job.status.as_ref();
            if status.is_some_and(|status| is_in_new_trouble(status, &progress)) {
                // New steps do not need a new plan; a new straggler or checkpoint error does.
                self.last = None;
            }
            self.progress = Some(progress);
        }
        let view = View::of(&self.job, self.progress.clone());
        self.is_unread |= self.screen.show(&view).is_err();
        self.record(false);
    }

    /// Writes the record for `ui --local`.
    fn record(&mut self, is_last: bool) {
        // The last plan may have seen a later step.
        let status = self.job.status.as_ref();
        let stored = status.and_then(|status| status.progress.as_ref());
        let stored = stored.map(|stored| &stored.progress);
        let both = self.progress.iter().chain(stored);
        let progress = both.max_by_key(|it| (it.generation, it.step));
        let problem = self
            .recorder
            .write(&self.job, &self.executor, progress, is_last);
        if let Some(words) = problem {
            self.screen.note(&format!("  {words}"));
        }
    }

    /// The exit code, once the job has ended.
    fn end(&mut self) -> Option<u8> {
        let status = self.job.status.as_ref()?;
        if !status.is_terminal() {
            return None;
        }
        let succeeded = status.is_true(roundhouse_api::ConditionType::Succeeded);
        let view = View::of(&self.job, self.progress.clone());
        self.screen.close(&view.end());
        Some(u8::from(!succeeded))
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_api::Incidents;
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn job_is_stuck_until_a_step_follows_the_incident() {
        let at = |step| Progress {
            step,
            ..testing::progress()
        };
        let mut status = TrainingJobStatus::default();
        assert!(!is_stuck(&status, Some(&at(9))), "no incident");
        status.incidents = Incidents {
            total: 1,
            since_progress: 1,
            last_step: 9,
            last_generation: Some(1),
        };
        assert!(is_stuck(&status, None) && is_stuck(&status, Some(&at(9))));
        assert!(!is_stuck(&status, Some(&at(10))));
    }

    #[test]
    fn replica_of_several_pods_runs_as_one_worker() {
        let job = json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "digits"},
            "spec": {
                "workers": {"replicas": 2, "podsPerReplica": 3, "procsPerWorker": 2, "spares": 1},
                "trainer": {
                    "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8, "epochs": 1,
                    "parallel": {"shard": "Zero1"},
                },
            },
        });
        let job = serde_json::from_value(job).unwrap();
        let job = validated(&job, &GpuNames::default()).unwrap();
        assert_eq!((job.replicas, job.pods_per_replica), (2, 1));
        assert_eq!((job.procs_per_worker, job.spares), (6, 1));
    }

    #[test]
    fn job_that_fails_before_its_first_generation_is_stuck() {
        let failure = json!({
            "time": "2026-01-01T00:00:00Z", "worker": "a", "reason": "Crashed", "message": "no module",
        });
        let mut status = TrainingJobStatus {
            last_failure: Some(serde_json::from_value(failure).unwrap()),
            ..TrainingJobStatus::default()
        };
        assert!(is_stuck(&status, None));
        let begun = json!({"generation": 1, "worldSize": 1, "nodes": 1, "members": ""});
        status.membership = Some(serde_json::from_value(begun).unwrap());
        assert!(!is_stuck(&status, None));
    }
}
