//! Observes a local run: its output, its processes, their progress and the files that they write.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use roundhouse_contract::{Phase, RankStatus, environment, paths};
use serde_json::Value;

use super::{Agent, DEADLINE, LocalRun, read};
use crate::processes::parents;

impl LocalRun {
    /// The weights that the run wrote when it completed.
    ///
    /// # Errors
    /// The file of the weights cannot be read.
    pub fn weights(&self) -> anyhow::Result<Vec<u8>> {
        let file = self.directory.path().join("weights.safetensors");
        std::fs::read(file).context("the weights")
    }

    /// A file that the job's script saved beside its checkpoints.
    ///
    /// # Errors
    /// The script has not saved the file.
    pub fn result(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        std::fs::read(self.dir().join("state").join(name))
            .with_context(|| format!("the script's file {name}"))
    }

    /// The record and the samples of progress that `kubectl roundhouse ui --local` reads.
    ///
    /// # Errors
    /// A file cannot be read, or is not JSON.
    pub fn record(&self) -> anyhow::Result<(Value, Vec<Value>)> {
        let record = std::fs::read_to_string(self.dir().join("record.json"))?;
        let samples = std::fs::read_to_string(self.dir().join("progress.jsonl"))?;
        let samples: Result<_, _> = samples.lines().map(serde_json::from_str).collect();
        Ok((serde_json::from_str(&record)?, samples?))
    }

    /// Runs the auditor on the ledger and returns its report.
    ///
    /// # Errors
    /// The auditor finds a defect; the error is its report.
    pub fn audit(&self) -> anyhow::Result<String> {
        self.auditor(&[&self.dir()])
    }

    /// Compares the ledger and the state with those of another run, and returns the auditor's
    /// report.
    ///
    /// # Errors
    /// The two runs are not equal bit for bit.
    pub fn compare(&self, other: &Self) -> anyhow::Result<String> {
        self.auditor(&[&self.dir(), &other.dir()])
    }

    fn auditor(&self, directories: &[&Path]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program.trainer);
        command.arg("audit");
        if directories.len() > 1 {
            command.arg("--compare");
        }
        let states = directories.iter().map(|it| it.join("state"));
        let output = command.args(states).output()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(output.status.success(), "{said}");
        Ok(said)
    }

    /// The output of the executor, and the last 30 kB of each worker's log.
    #[must_use]
    pub fn output(&self) -> String {
        let mut text = read(&self.directory.path().join("output"));
        let logs = std::fs::read_dir(self.dir().join("logs"));
        for entry in logs.into_iter().flatten().flatten() {
            let log = read(&entry.path());
            let tail = log.len().saturating_sub(30_000);
            let tail = log.get(tail..).unwrap_or(&log);
            let _ = write!(text, "--- {}\n{tail}", entry.path().display());
        }
        text
    }

    /// The agents that run at this moment.
    #[must_use]
    pub fn agents(&self) -> Vec<Agent> {
        let all = parents();
        let children = |parent: u32| {
            let of = all.iter().filter(move |(_, its)| *its == parent);
            of.map(|(pid, _)| *pid).collect::<Vec<_>>()
        };
        let agents = children(self.child.id()).into_iter();
        agents
            .map(|pid| {
                let statuses = statuses_under(pid);
                Agent {
                    pid,
                    ranks: children(pid),
                    is_prepared: statuses.iter().all(|it| {
                        it.as_ref()
                            .is_some_and(|status| status.phase != Phase::Preparing)
                    }),
                    generation: statuses
                        .iter()
                        .map(|it| generation_of(it.as_ref()))
                        .min()
                        .unwrap_or(0),
                }
            })
            .collect()
    }

    /// The indices of the workers that run at this moment.
    #[must_use]
    pub fn workers(&self) -> Vec<u32> {
        let index = |agent: &Agent| {
            variable_of(agent.pid, environment::WORKER_INDEX)?
                .parse()
                .ok()
        };
        let mut indices: Vec<u32> = self.agents().iter().filter_map(index).collect();
        indices.sort_unstable();
        indices
    }

    /// The last status of each worker's first process.
    #[must_use]
    pub fn statuses(&self) -> Vec<RankStatus> {
        self.statuses_of(0)
    }

    /// The last status of the process with this local rank in each worker.
    #[must_use]
    pub fn statuses_of(&self, local_rank: u32) -> Vec<RankStatus> {
        let workers = std::fs::read_dir(self.dir().join("workers"));
        let workers = workers.into_iter().flatten().flatten();
        let files = workers.map(|it| paths::rank_status(&it.path().join("run"), local_rank));
        files
            .filter_map(|file| serde_json::from_str(&read(&file)).ok())
            .collect()
    }

    /// The newest generation that a rank is in; 0 in the lobby.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let generations = self.statuses().into_iter().map(|status| status.generation);
        generations.max().unwrap_or(0)
    }

    /// The most steps that any worker has committed.
    #[must_use]
    pub fn step(&self) -> u64 {
        let steps = self.statuses().into_iter().map(|status| status.step);
        steps.max().unwrap_or(0)
    }

    /// Waits for a condition, at most eight minutes.
    ///
    /// # Errors
    /// The condition does not hold within eight minutes, or the executor ends first.
    pub fn wait_for(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !condition(self) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the executor ended ({status}) before {what}\n{}",
                    self.output()
                );
            }
            ensure!(Instant::now() < deadline, "no {what}\n{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// An environment variable of a running process.
fn variable_of(pid: u32, name: &str) -> Option<String> {
    let environment = read(Path::new(&format!("/proc/{pid}/environ")));
    let mut variables = environment.split('\0').filter_map(|it| it.split_once('='));
    let found = variables.find(|(own, _)| *own == name);
    found.map(|(_, value)| value.to_owned())
}

/// The last status of each rank of an agent, at least one. None: the rank has written no status.
fn statuses_under(agent: u32) -> Vec<Option<RankStatus>> {
    let directory = variable_of(agent, environment::RUN_DIR).unwrap_or_default();
    let procs = variable_of(agent, environment::PROCS_PER_WORKER);
    let procs = procs.and_then(|procs| procs.parse().ok()).unwrap_or(1);
    let files = (0..procs).map(|rank| paths::rank_status(Path::new(&directory), rank));
    files
        .map(|file| serde_json::from_str(&read(&file)).ok())
        .collect()
}

/// The generation of which a process is a member; 0 if it is outside of all. A member may evaluate
/// or save at this moment.
fn generation_of(status: Option<&RankStatus>) -> u64 {
    let member = status.filter(|it| {
        matches!(
            it.phase,
            Phase::Training | Phase::Evaluating | Phase::Saving
        )
    });
    member.map_or(0, |it| it.generation)
}
