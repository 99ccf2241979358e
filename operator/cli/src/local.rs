//! `run --local`: a job on this machine, without a cluster. The planner that plans pods plans processes
//! here: observe → validate → plan → apply → report, a few dozen times a second.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_api::{Scheduling, TrainingJob};
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
mod edits;
mod executor;
mod hangup;
mod home;
mod launch;
mod manifest;
mod memory;
mod orphans;
mod own;
mod pids;
mod probe;
mod programs;
pub(crate) mod record;
mod setting;
mod worker;

use edits::Edits;
use executor::Executor;
use hangup::Hangup;
use home::{Home, Outcome};
use manifest::Manifest;
use record::diary::Diary;

const TICK: Duration = Duration::from_millis(10);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// What to run, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Run the job's workers as processes on this machine. (For a cluster: `kubectl apply -f FILE`.)
    #[arg(long, required = true)]
    local: bool,
    /// The file with the job, and the ConfigMap with its data if it has one. A job without `spec.trainer` runs the command
    /// of its template with the programs of this environment, in the current directory; its image is not used. Saving it with another
    /// `spec.workers.replicas` rescales the running job; `spec.suspend: true` suspends it, and `false` resumes it.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// Which job, if the file has several.
    #[arg(long)]
    name: Option<String>,
    /// Directory with the job's data, instead of the volume that the file names.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Directory for logs, checkpoints and ledger. It is kept, and a later run with it continues from its newest checkpoint.
    /// Default: a temporary directory, of which only the logs of a job that has failed are kept.
    /// `ui --local DIR` shows the run in a browser.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the final weights here, as safetensors.
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

/// Runs a job to its end; the exit code is that of `watch`.
pub(crate) async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let dir = options.dir.as_deref().map(home::locate).transpose()?;
    let options = &Options {
        dir,
        ..options.clone()
    };
    let mut manifest = Manifest::read(&options.file, options.name.as_deref())?;
    setting::keep_state(&mut manifest.job, options);
    manifest.job.metadata.uid = Some(setting::run_uid());
    let job = validated(&manifest.job, &options.gpus)?;
    capacity::check(&job)?;
    let home = Home::make(options.dir.as_deref())?;
    let setting = setting::of(options, &manifest, &job, &home)?;
    let name = job.identity.name.clone();
    let begins = format!(
        "{name}: {} on this machine, without a cluster; logs: {}",
        counted(job.replicas, "worker"),
        home.logs().display()
    );
    let where_to_look = format!(
        "See it in a browser: kubectl-roundhouse ui --local {}",
        home.path().display()
    );
    let lines = own::unused(&job).into_iter().chain(home.resumes());
    let mut lines = std::iter::once(begins).chain(lines).chain([where_to_look]);
    if lines.try_for_each(|text| line(&text)).is_err() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let mut run = Run {
        edits: Edits::of(options),
        executor: Executor::new(&name, setting),
        job: manifest.job,
        valid: job,
        last: None,
        wake_at: None,
        progress_at: Instant::now(),
        progress: None,
        screen: Screen::new(),
        is_unread: false,
        diary: Diary::begin(home.path())?,
    };
    roundhouse_process_tree::adopt_orphans()?;
    let code = run.until_it_ends().await;
    let fails = run.fails();
    run.record(true);
    // Nobody is left behind, whatever happened.
    run.executor.kill();
    let mut tended = Ok(());
    while tended.is_ok() && run.executor.num_workers() > 0 {
        tended = run.executor.tend();
        tokio::time::sleep(TICK).await;
    }
    let code = tended.and(code);
    let outcome = match code {
        Ok(0) => Outcome::Succeeded,
        Ok(INTERRUPTED) if fails => Outcome::GivenUp,
        Ok(INTERRUPTED) => Outcome::Interrupted,
        Ok(_) | Err(_) => Outcome::Failed,
    };
    let words = home.close(outcome);
    // A terminal that is gone is no reason to fail.
    let _ = line(&words);
    code.map(ExitCode::from)
}

/// The job as it runs here: its processes are on this machine, so nobody places them.
fn validated(job: &TrainingJob, gpus: &GpuNames) -> anyhow::Result<ValidatedJob> {
    Ok(ValidatedJob {
        scheduling: Scheduling::default(),
        ..gpus.validate(job)?
    })
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
    /// Whether the program that read standard output is gone, as `head` is after its lines: the run ends as one whose
    /// terminal is gone.
    is_unread: bool,
    diary: Diary,
}

impl Run {
    async fn until_it_ends(&mut self) -> anyhow::Result<u8> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = Hangup::listen()?;
        loop {
            self.executor.tend()?;
            for words in self.executor.troubles() {
                self.screen.note(&format!("  {words}"));
            }
            let edited = self
                .edits
                .look(&self.job, self.executor.setting(), &self.screen);
            if let Some(edits::Edited {
                job,
                valid,
                setting,
            }) = edited
            {
                (self.job, self.valid) = (job, valid);
                self.executor.renew(setting);
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
        self.executor.dismiss();
        while self.executor.num_workers() > 0 {
            self.executor.tend()?;
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                _ = interrupt.recv() => self.executor.kill(),
                _ = terminate.recv() => self.executor.kill(),
                () = hangup.recv() => self.executor.kill(),
            }
        }
        Ok(INTERRUPTED)
    }

    /// Whether a worker has failed since the last committed step, or fails before its first.
    fn fails(&self) -> bool {
        let incidents = self.job.status.as_ref().map(|status| &status.incidents);
        let waits = |observed: &Observed| {
            observed
                .pods
                .iter()
                .any(|pod| pod.container.waiting.is_some())
        };
        incidents.is_some_and(|it| it.since_progress > 0) || self.last.as_ref().is_some_and(waits)
    }

    /// Plans until nothing changes any more, if anything has changed.
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
            if let Some(line) = self.executor.newcomers(&actions) {
                self.screen.note(&format!("  {line}"));
            }
            for event in events {
                self.diary.note(&self.job, &event);
                let words = format!("  {}: {}", event.reason, plain(&event.message));
                self.screen.note(&words);
            }
        }
    }

    fn show(&mut self) {
        if let Some(ProgressSample { progress, at: _ }) = self.executor.progress() {
            let status = self.job.status.as_ref();
            if status.is_some_and(|status| is_in_new_trouble(status, &progress)) {
                // Steps alone are no reason to plan.
                self.last = None;
            }
            self.progress = Some(progress);
        }
        let view = View::of(&self.job, self.progress.clone());
        self.is_unread |= self.screen.show(&view).is_err();
        self.record(false);
    }

    /// Writes what `ui --local` shows.
    fn record(&mut self, is_last: bool) {
        // What was planned last may know a later step.
        let status = self.job.status.as_ref();
        let stored = status.and_then(|status| status.progress.as_ref());
        let stored = stored.map(|stored| &stored.progress);
        let both = self.progress.iter().chain(stored);
        let progress = both.max_by_key(|it| (it.generation, it.step));
        let told = self
            .diary
            .write(&self.job, &self.executor, progress, is_last);
        if let Some(words) = told {
            self.screen.note(&format!("  {words}"));
        }
    }

    /// The exit code, once the job has ended and all workers are gone or completed.
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
