//! A job in the local executor, and the faults that a test can inject into it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::processes::send;

mod observe;
mod program;

pub use program::{Program, job, programs};

/// The limit of waits for a run of some seconds. A busy machine may need many times as long.
const DEADLINE: Duration = Duration::from_mins(8);

/// A running local executor with its temporary directory.
#[derive(Debug)]
pub struct LocalRun {
    directory: TempDir,
    program: Program,
    job: Value,
    child: Child,
}

/// The agent of one worker, as the test observes it.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The process id of the agent.
    pub pid: u32,
    /// The process ids of its ranks, which are its child processes.
    pub ranks: Vec<u32>,
    /// Whether all ranks have left the phase `Preparing`. A worker that dies earlier restarts with
    /// a growing back-off.
    pub is_prepared: bool,
    /// The lowest generation of which the ranks are members; 0 if a rank is outside of all.
    pub generation: u64,
}

impl LocalRun {
    /// Starts a job of the built-in trainer with environment variables for its processes.
    ///
    /// # Errors
    /// The executor cannot be started.
    pub fn start(job: &Value, variables: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_program(Program::built_in()?, job, variables)
    }

    /// Starts a job with another program than the built-in trainer.
    ///
    /// # Errors
    /// The executor cannot be started.
    pub fn start_program(
        program: Program,
        job: &Value,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("job.yaml");
        std::fs::write(&file, job.to_string())?;
        let child = spawn(directory.path(), &program, job, variables)?;
        Ok(Self {
            directory,
            program,
            job: job.clone(),
            child,
        })
    }

    /// Starts the executor again in the same directory after it has ended.
    ///
    /// # Errors
    /// The executor cannot be started.
    pub fn restart(&mut self, variables: &[(&str, &str)]) -> anyhow::Result<()> {
        self.child = spawn(self.directory.path(), &self.program, &self.job, variables)?;
        Ok(())
    }

    /// Runs a second executor in the same directory while this one runs, and returns its output.
    ///
    /// # Errors
    /// The second executor cannot be started.
    pub fn run_second(&self) -> anyhow::Result<Output> {
        Ok(command(self.directory.path(), &self.program, &self.job)?.output()?)
    }

    /// The directory of the run, the value of `--dir`.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Makes each later step of all workers last longer.
    ///
    /// # Errors
    /// The fault file cannot be written.
    pub fn slow_down(&self, milliseconds: u64) -> anyhow::Result<()> {
        self.write_fault("pace", &milliseconds.to_string())
    }

    /// Makes each later step of one worker last longer than those of the others.
    ///
    /// # Errors
    /// The fault file cannot be written.
    pub fn slow_down_worker(&self, index: u32, milliseconds: u64) -> anyhow::Result<()> {
        self.write_fault(&format!("pace-{index}"), &milliseconds.to_string())
    }

    /// Saves the job's file with another number of workers.
    ///
    /// # Errors
    /// The job's file cannot be written.
    pub fn scale(&mut self, workers: u32) -> anyhow::Result<()> {
        self.edit(|spec| spec["workers"]["replicas"] = json!(workers))
    }

    /// Saves the job's file with a changed spec.
    ///
    /// # Errors
    /// The job's file cannot be written.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        change(&mut self.job["spec"]);
        self.save()
    }

    fn save(&self) -> anyhow::Result<()> {
        let file = self.directory.path().join("job.yaml");
        let partial = file.with_extension("partial");
        std::fs::write(&partial, self.job.to_string())?;
        // The executor compares modification times. Two saves within one tick of the file system's
        // clock would have the same time.
        let before = std::fs::metadata(&file)?.modified()?;
        let now = SystemTime::now().max(before + Duration::from_millis(10));
        File::options()
            .append(true)
            .open(&partial)?
            .set_modified(now)?;
        Ok(std::fs::rename(partial, file)?)
    }

    /// Makes each access to the checkpoint volume take `pace` milliseconds longer, or wait
    /// (`hold`).
    ///
    /// # Errors
    /// The fault file cannot be written.
    pub fn pace_volume(&self, pace: &str) -> anyhow::Result<()> {
        self.write_fault("pace-of-volume", pace)
    }

    /// Makes the process of a rank kill itself the next time that it reaches a point, once.
    ///
    /// # Errors
    /// The fault file cannot be written.
    pub fn kill_at(&self, rank: u32, point: &str) -> anyhow::Result<()> {
        self.write_fault("fault", &format!("{rank}:{point}"))
    }

    /// Whether the process of [`Self::kill_at`] has killed itself.
    #[must_use]
    pub fn has_killed(&self) -> bool {
        !self.directory.path().join("fault").exists()
    }

    /// Replaces a file that the processes read faults from.
    fn write_fault(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let file = self.directory.path().join(name);
        let partial = file.with_extension("partial");
        std::fs::write(&partial, text)?;
        Ok(std::fs::rename(&partial, &file)?)
    }

    /// Sends a signal to the executor.
    ///
    /// # Errors
    /// The executor has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        ensure!(send(self.child.id(), signal), "the executor has ended");
        Ok(())
    }

    /// Waits until the executor ends.
    ///
    /// # Errors
    /// The executor still runs after eight minutes.
    pub fn end(&mut self) -> anyhow::Result<ExitStatus> {
        self.end_within(DEADLINE)
    }

    /// Waits until the executor of a long run ends.
    ///
    /// # Errors
    /// The executor still runs after `patience`.
    pub fn end_within(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "the executor did not end\n{}",
                self.output()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        // The agents end with the executor, and the ranks with their agents.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.directory.disable_cleanup(true);
            println!("kept the directory {}", self.directory.path().display());
        }
    }
}

fn spawn(
    directory: &Path,
    program: &Program,
    job: &Value,
    variables: &[(&str, &str)],
) -> anyhow::Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("output"))?;
    let child = command(directory, program, job)?
        .envs(variables.iter().copied())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child)
}

fn command(directory: &Path, program: &Program, job: &Value) -> anyhow::Result<Command> {
    // The child processes of nohup ignore SIGHUP, and a test may run under nohup.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP")
        .arg(programs()?.join("kubectl-roundhouse"))
        .args(["run", "--local", "-f"])
        .arg(directory.join("job.yaml"))
        .arg("--dir")
        .arg(directory.join("run"))
        .env("ROUNDHOUSE_FAULT_FILE", directory.join("fault"))
        .env("ROUNDHOUSE_FAULT_STEP_FILE", directory.join("pace"))
        .env(
            "ROUNDHOUSE_FAULT_VOLUME_FILE",
            directory.join("pace-of-volume"),
        );
    // A job with a command of its own needs no trainer and no data set.
    if job["spec"].get("trainer").is_some() {
        command
            .arg("--trainer")
            .arg(&program.trainer)
            .arg("--data")
            .arg(&program.data)
            .arg("--save-weights")
            .arg(directory.join("weights.safetensors"));
    }
    Ok(command)
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
