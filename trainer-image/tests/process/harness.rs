//! Starts the processes of a job, acts as their operator, and waits for their progress.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use roundhouse_contract::environment::{CHECKPOINT_IO_TIMEOUT_SECONDS, CheckpointEnvironment};
use roundhouse_contract::{LaunchEnvironment, Phase};
use serde_json::{Value, json};
use tch::Tensor;
use tempfile::TempDir;

mod commit;
pub(crate) mod data;
mod evaluating;
mod faulty;
mod frozen;
mod generations;
mod images;
mod nccl;
mod observe;
mod pairs;
mod replicas;

pub(crate) use commit::on_device;
pub(crate) use images::images_of;

const DEADLINE: Duration = Duration::from_mins(6);

/// The digits in the repository.
pub(crate) fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/digits")
}

/// A copy of the digits that a test may change.
pub(crate) fn digits_copy() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(digits()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    directory
}

/// A small training on the digits; tests change single fields.
pub(crate) fn config() -> Value {
    json!({
        "model": {"name": "mlp", "hidden": [32]},
        "data": {"format": "idx"},
        "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
        "globalBatchSize": 64,
        "steps": 100,
        "seed": 7,
    })
}

/// Evaluates only after the last step. Ranks wait longer for a rank that is stopped within an
/// evaluation, and tests of ranks that are stopped within a step must not depend on that.
pub(crate) fn without_evaluations(mut config: Value) -> Value {
    config["eval"] = json!({"everyEpochs": 1_000_000});
    config
}

/// A job: `nodes` workers with `procs_per_worker` processes each, on this machine.
pub(crate) struct Job {
    directory: TempDir,
    nodes: u32,
    procs_per_worker: u32,
    ports: Vec<u16>,
    processes: Vec<Child>,
    /// Environment variables of single workers: worker, name and value.
    variables: Vec<(u32, &'static str, String)>,
    /// Steps whose loss becomes NaN on the rank with their first sample, such as `20,21`.
    spoilt: String,
    checkpoint: Option<CheckpointEnvironment>,
    patience: Option<u64>,
    /// Whether the device commits steps, as on a GPU.
    commits_on_device: bool,
    /// Number of workers that are a replica.
    replica_size: u32,
    /// Number of the life of each replica of several workers.
    lives: Vec<u32>,
    /// Whether the workers of a replica hold second copies for each other.
    has_peer_copies: bool,
}

impl Job {
    /// Starts all processes, which then enter the lobby.
    pub(crate) fn start(
        config: &Value,
        data_dir: &Path,
        nodes: u32,
        procs_per_worker: u32,
    ) -> Self {
        let mut job = Self::new(config, nodes, procs_per_worker);
        job.spawn(data_dir);
        job
    }

    /// Starts workers of one process that find the membership of an earlier generation.
    pub(crate) fn restart(config: &Value, nodes: u32, last_generation: u64) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.issue(last_generation);
        job.spawn(&digits());
        job
    }

    fn new(config: &Value, nodes: u32, procs_per_worker: u32) -> Self {
        let job = Self {
            directory: tempfile::tempdir().unwrap(),
            nodes,
            procs_per_worker,
            ports: (0..nodes).map(|_| free_port()).collect(),
            processes: Vec::new(),
            variables: Vec::new(),
            spoilt: String::new(),
            checkpoint: None,
            patience: None,
            commits_on_device: commit::is_on_device(),
            replica_size: 1,
            lives: Vec::new(),
            has_peer_copies: false,
        };
        std::fs::write(job.path("config"), config.to_string()).unwrap();
        job
    }

    fn spawn(&mut self, data_dir: &Path) {
        for node in 0..self.nodes {
            std::fs::create_dir(self.run_dir(node)).unwrap();
            for local_rank in 0..self.procs_per_worker {
                let process = self.command(node, local_rank, data_dir).spawn().unwrap();
                self.processes.push(process);
            }
        }
    }

    /// The checkpoint directory of a job that keeps checkpoints.
    pub(crate) fn volume(&self) -> &Path {
        let checkpoint = self.checkpoint.as_ref();
        &checkpoint.expect("a job that keeps checkpoints").dir
    }

    /// Starts a job and publishes its first generation when all processes are in the lobby.
    pub(crate) fn train(config: &Value, nodes: u32, procs_per_worker: u32) -> Self {
        Self::train_on(config, &digits(), nodes, procs_per_worker)
    }

    /// Like [`Self::train`], with other data.
    pub(crate) fn train_on(
        config: &Value,
        data_dir: &Path,
        nodes: u32,
        procs_per_worker: u32,
    ) -> Self {
        Self::new(config, nodes, procs_per_worker).begin(data_dir)
    }

    /// Starts the processes, and publishes the first generation when all are in the lobby.
    fn begin(mut self, data_dir: &Path) -> Self {
        self.spawn(data_dir);
        self.issue_when_ready(1);
        self
    }

    /// All workers except one.
    pub(crate) fn others(&self, node: u32) -> Vec<u32> {
        (0..self.nodes).filter(|other| *other != node).collect()
    }

    fn command(&self, node: u32, local_rank: u32, data_dir: &Path) -> Command {
        let environment = LaunchEnvironment {
            local_rank,
            local_world_size: self.procs_per_worker,
            sharded: self.replica_size > 1,
            pod_ip: self.ip_of(node),
            rendezvous_port: self.ports[node as usize],
            membership_file: self.membership_file(node),
            trainer_config_file: Some(self.path("config")),
            run_dir: self.run_dir(node),
            data_dir: data_dir.to_owned(),
            checkpoint: self
                .checkpoint
                .clone()
                .map(|checkpoint| of_worker(checkpoint, node)),
        };
        let log = File::create(self.path(&format!("log-{node}-{local_rank}"))).unwrap();
        let mut command = trainer();
        command
            .env("ROUNDHOUSE_FAULT_VOLUME_FILE", self.path("pace-of-volume"))
            .env("ROUNDHOUSE_FAULT_STEP_FILE", self.path("pace-of-steps"))
            .env("ROUNDHOUSE_FAULT_COPY_FILE", self.path("pace-of-copies"))
            .env("ROUNDHOUSE_FAULT_FILE", self.path("fault"))
            .env("ROUNDHOUSE_FAULT_LOSS", &self.spoilt);
        command.envs(self.replica_environment(node));
        if self.commits_on_device {
            command.env("ROUNDHOUSE_FAULT_COMMIT", "device");
        }
        if let Some(seconds) = self.patience {
            command.env(CHECKPOINT_IO_TIMEOUT_SECONDS, seconds.to_string());
        }
        for (of, name, value) in &self.variables {
            if *of == node {
                command.env(name, value);
            }
        }
        command
            .envs(environment.to_pairs())
            .env("ROUNDHOUSE_SAVE_WEIGHTS", self.path("weights.safetensors"))
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command
    }

    /// Sends a signal to a process, by rank.
    pub(crate) fn signal(&self, rank: usize, signal: &str) {
        let pid = self.processes[rank].id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Peak memory of a process in MiB, by rank.
    pub(crate) fn peak_mib(&self, rank: usize) -> u64 {
        let file = format!("/proc/{}/status", self.processes[rank].id());
        let text = std::fs::read_to_string(file).unwrap();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.unwrap().split_whitespace().next().unwrap();
        kib.parse::<u64>().unwrap() / 1024
    }

    /// Waits for a process to end, by rank. Returns its exit code, `None` for a signal.
    pub(crate) fn exit_code(&mut self, rank: usize) -> Option<i32> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.processes[rank].try_wait().unwrap() {
                return status.code();
            }
            assert!(
                Instant::now() < deadline,
                "rank {rank} does not end\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for every process to end. Returns the exit codes by rank.
    pub(crate) fn exit_codes(&mut self) -> Vec<Option<i32>> {
        (0..self.processes.len())
            .map(|rank| self.exit_code(rank))
            .collect()
    }

    /// Waits for a successful end. Returns the bytes of the weights.
    pub(crate) fn complete(&mut self) -> Vec<u8> {
        let codes = self.exit_codes();
        assert!(
            codes.iter().all(|code| *code == Some(0)),
            "{codes:?}\n{}",
            self.logs()
        );
        self.wait_for("done", |status| status.phase == Phase::Done);
        self.bytes_of_weights()
    }

    /// The bytes of the final weights.
    pub(crate) fn bytes_of_weights(&self) -> Vec<u8> {
        std::fs::read(self.path("weights.safetensors")).unwrap()
    }

    /// The final weights by name.
    pub(crate) fn weights(&self) -> Vec<(String, Tensor)> {
        let mut weights = Tensor::read_safetensors(self.path("weights.safetensors")).unwrap();
        weights.sort_by(|left, right| left.0.cmp(&right.0));
        weights
    }

    fn ranks(&self) -> impl Iterator<Item = (u32, u32)> {
        let procs_per_worker = self.procs_per_worker;
        (0..self.nodes).flat_map(move |node| (0..procs_per_worker).map(move |local| (node, local)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run_dir(&self, node: u32) -> PathBuf {
        self.path(&format!("run-{node}"))
    }

    fn membership_file(&self, node: u32) -> PathBuf {
        self.path(&format!("membership-{node}"))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The program under test, with one compute thread and without variables of the caller's
/// environment that it would read.
pub(crate) fn trainer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roundhouse-train"));
    command.env("OMP_NUM_THREADS", "1");
    command
}

/// Saves a checkpoint after this number of steps, and none by time.
pub(crate) fn every_steps(dir: PathBuf, steps: u64) -> CheckpointEnvironment {
    CheckpointEnvironment {
        dir,
        every_steps: Some(steps),
        every_seconds: None,
        keep: 2,
        best: None,
        job_uid: None,
        local: None,
    }
}

/// Gives each worker a directory of its own for local copies.
fn of_worker(mut checkpoint: CheckpointEnvironment, node: u32) -> CheckpointEnvironment {
    if let Some(local) = &mut checkpoint.local {
        local.dir.push(node.to_string());
        if let Some(file) = &mut local.pair_file {
            file.push(node.to_string());
        }
    }
    checkpoint
}

/// Audits a volume. Returns the exit code and the output.
pub(crate) fn audit(volume: &Path) -> (Option<i32>, String) {
    let output = trainer().arg("audit").arg(volume).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Compares two volumes. Returns the exit code and the output.
pub(crate) fn compared(left: &Path, right: &Path) -> (Option<i32>, String) {
    let mut command = trainer();
    let output = command
        .args(["audit", "--compare"])
        .args([left, right])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Asserts that a volume's ledger proves a training of this number of steps.
pub(crate) fn assert_proven(volume: &Path, steps: u64) {
    let (code, text) = audit(volume);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("proven: {steps} of ")), "{text}");
}

/// Damages a file as a failing disk might.
pub(crate) fn flip_last_bit(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Writes a file atomically.
fn replace(path: &Path, text: &str) {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text).unwrap();
    std::fs::rename(&partial, path).unwrap();
}

/// A free port below the kernel's ephemeral ports. The kernel could give an ephemeral port to a
/// connection before the process listens on it.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(31);
    loop {
        let place = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(place).unwrap();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
