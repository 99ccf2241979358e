//! A job in the local executor, and what can be done to its processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::manifests::repository;
use crate::processes::send;

mod look;

/// Of a run that takes seconds: on a busy machine it may take many times as long.
const DEADLINE: Duration = Duration::from_mins(8);

/// Where the programs are: the folder that `ROUNDHOUSE_PROGRAMS` names.
///
/// # Errors
/// It is not set.
pub fn programs() -> anyhow::Result<PathBuf> {
    let dir = std::env::var_os("ROUNDHOUSE_PROGRAMS");
    dir.map(PathBuf::from)
        .context("ROUNDHOUSE_PROGRAMS is not set: tests/run/local sets it")
}

/// What trains, and on what.
#[derive(Clone, Debug)]
pub struct Program {
    /// The trainer.
    pub trainer: PathBuf,
    /// Directory with its data.
    pub data: PathBuf,
}

impl Program {
    /// The built-in trainer and the digits.
    ///
    /// # Errors
    /// It is not known where programs are.
    pub fn built_in() -> anyhow::Result<Self> {
        Ok(Self {
            trainer: programs()?.join("roundhouse-train"),
            data: repository().join("examples/data/digits"),
        })
    }
}

/// A job that trains a small network on the digits; tests change what they are about.
#[must_use]
pub fn job(workers: u32, steps: u64) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": {"replicas": workers, "minReplicas": 1},
            // Training begins when all are ready.
            "elastic": {"joinWindowSeconds": 60},
            "trainer": {
                "model": {"name": "mlp", "hidden": [32]},
                "data": {"format": "idx"},
                "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
                "globalBatchSize": 64,
                "steps": steps,
                "seed": 7,
            },
        },
    })
}

/// A running executor.
#[derive(Debug)]
pub struct LocalRun {
    directory: TempDir,
    program: Program,
    job: Value,
    child: Child,
}

/// A worker's agent.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Its process.
    pub pid: u32,
    /// Processes of its ranks, that are its children.
    pub ranks: Vec<u32>,
    /// Whether they have loaded what they need: a worker that dies before is started again less and less often.
    pub is_prepared: bool,
    /// The generation in which all of them train; 0 if they do not.
    pub generation: u64,
}

impl LocalRun {
    /// Starts a job of the built-in trainer with variables for its processes.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(job: &Value, variables: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_program(Program::built_in()?, job, variables)
    }

    /// The same with another program.
    ///
    /// # Errors
    /// It cannot be started.
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

    /// Starts it again in the same directory, when it has ended.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn again(&mut self, variables: &[(&str, &str)]) -> anyhow::Result<()> {
        self.child = spawn(self.directory.path(), &self.program, &self.job, variables)?;
        Ok(())
    }

    /// What a second one in the same directory says, while this one runs.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn beside(&self) -> anyhow::Result<Output> {
        Ok(command(self.directory.path(), &self.program, &self.job)?.output()?)
    }

    /// The directory it was given.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Makes each step last longer, from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn slow_down(&self, milliseconds: u64) -> anyhow::Result<()> {
        self.tell("pace", &milliseconds.to_string())
    }

    /// Makes each step of one worker last longer than those of the others, from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn slow_down_worker(&self, index: u32, milliseconds: u64) -> anyhow::Result<()> {
        self.tell(&format!("pace-{index}"), &milliseconds.to_string())
    }

    /// Saves the job's file with another number of workers.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn scale(&mut self, workers: u32) -> anyhow::Result<()> {
        self.edit(|spec| spec["workers"]["replicas"] = json!(workers))
    }

    /// Saves the job's file with a change of its spec.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        change(&mut self.job["spec"]);
        self.save()
    }

    fn save(&self) -> anyhow::Result<()> {
        let file = self.directory.path().join("job.yaml");
        let partial = file.with_extension("partial");
        std::fs::write(&partial, self.job.to_string())?;
        // Two within one tick of the file system's clock would look like one.
        let before = std::fs::metadata(&file)?.modified()?;
        let now = SystemTime::now().max(before + Duration::from_millis(10));
        File::options()
            .append(true)
            .open(&partial)?
            .set_modified(now)?;
        Ok(std::fs::rename(partial, file)?)
    }

    /// Each access to the volume of the checkpoints takes so many milliseconds longer, or waits (`hold`).
    ///
    /// # Errors
    /// The file that says so cannot be written.
    pub fn pace_volume(&self, pace: &str) -> anyhow::Result<()> {
        self.tell("pace-of-volume", pace)
    }

    /// The process of this rank is killed when it is at this point the next time, once.
    ///
    /// # Errors
    /// The file that says so cannot be written.
    pub fn kill_at(&self, rank: u32, point: &str) -> anyhow::Result<()> {
        self.tell("fault", &format!("{rank}:{point}"))
    }

    /// Whether that has happened.
    #[must_use]
    pub fn has_killed(&self) -> bool {
        !self.directory.path().join("fault").exists()
    }

    /// Replaces a file by which processes are told something.
    fn tell(&self, name: &str, words: &str) -> anyhow::Result<()> {
        let file = self.directory.path().join(name);
        let partial = file.with_extension("partial");
        std::fs::write(&partial, words)?;
        Ok(std::fs::rename(&partial, &file)?)
    }

    /// Sends a signal to the executor.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        ensure!(send(self.child.id(), signal), "the executor has ended");
        Ok(())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It does not come within eight minutes.
    pub fn end(&mut self) -> anyhow::Result<ExitStatus> {
        self.end_within(DEADLINE)
    }

    /// Waits for the end of a long run.
    ///
    /// # Errors
    /// It does not come in that time.
    pub fn end_within(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "no end\n{}", self.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        // Its agents end with it, and their ranks with them.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.directory.disable_cleanup(true);
            println!("kept: {}", self.directory.path().display());
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
    // A test may run under nohup, whose children ignore SIGHUP.
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
    // A command of the job's own brings all of it.
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
