//! Workers of a job in restart mode on this machine: real agents that run the counting script. The
//! test issues generations to them, as the operator would.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use roundhouse_contract::membership::{Action, Incarnation, Master, Membership};
use roundhouse_contract::{RankStatus, TerminationMessage, environment, paths};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_mins(5);

/// A job whose workers have one process each.
pub(crate) struct Job {
    directory: TempDir,
    port: u16,
    script: Vec<String>,
    options: Vec<String>,
    agents: Vec<Child>,
}

impl Job {
    /// Starts the agents and waits until all of them are in the lobby.
    pub(crate) fn start(workers: usize, script: &[&str], options: &[&str]) -> Self {
        let own = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let mut job = Self {
            directory: TempDir::new().unwrap(),
            port: free_port(),
            script: own(script),
            options: own(options),
            agents: Vec::new(),
        };
        for worker in 0..workers {
            let agent = job.agent(worker);
            job.agents.push(agent);
        }
        job.in_the_lobby(0..workers);
        job
    }

    fn agent(&self, worker: usize) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path(worker, "log"))
            .unwrap();
        let _ = std::fs::remove_dir_all(self.path(worker, "run"));
        Command::new(env!("CARGO_BIN_EXE_agent-under-test"))
            .args(["--mode", "Restart", "--http-address", "127.0.0.1:0"])
            .args(["--grace-seconds", "2", "--worker-index"])
            .arg(worker.to_string())
            .args(&self.options)
            .arg("--run-dir")
            .arg(self.path(worker, "run"))
            .arg("--membership-file")
            .arg(self.path(worker, "membership"))
            .arg("--termination-log")
            .arg(self.path(worker, "termination"))
            .args(["--", env!("CARGO_BIN_EXE_counting-script"), "--directory"])
            .arg(self.directory.path())
            .args(&self.script)
            .env(environment::END_WITH_PARENT, std::process::id().to_string())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Starts a worker's agent again after its end, as the kubelet restarts a container.
    pub(crate) fn restart(&mut self, worker: usize) {
        assert!(self.ended(worker).is_some(), "worker {worker} still runs");
        self.agents[worker] = self.agent(worker);
        self.in_the_lobby(worker..worker + 1);
    }

    fn in_the_lobby(&self, workers: std::ops::Range<usize>) {
        self.until("all workers are in the lobby", || {
            let ready = |worker| self.status(worker).is_some_and(|s| s.phase.is_ready());
            workers.clone().all(ready)
        });
    }

    /// Issues a generation to some workers, in node-rank order.
    pub(crate) fn issue(&self, generation: u64, members: &[usize]) {
        for (node_rank, worker) in (0..).zip(members) {
            self.write_membership(generation, *worker, Action::Join, node_rank, members.len());
        }
    }

    /// Issues a membership that asks a worker to leave.
    pub(crate) fn dismiss(&self, generation: u64, worker: usize) {
        self.write_membership(generation, worker, Action::Leave, 0, 1);
    }

    fn write_membership(
        &self,
        generation: u64,
        worker: usize,
        action: Action,
        node_rank: u32,
        nodes: usize,
    ) {
        let document = Membership {
            life: String::new(),
            nonce: String::new(),
            generation,
            action,
            node_rank,
            nodes: u32::try_from(nodes).unwrap(),
            procs_per_worker: 1,
            master: Master {
                address: "127.0.0.1".to_owned(),
                port: self.port,
            },
            members: String::new(),
            incarnation: Incarnation {
                pod_uid: format!("worker-{worker}"),
                restarts: 0,
            },
            issued_at: "2026-01-01T00:00:00Z".to_owned(),
            repeats: 0,
        };
        let partial = self.path(worker, "partial");
        std::fs::write(&partial, document.to_json().unwrap()).unwrap();
        std::fs::rename(&partial, self.path(worker, "membership")).unwrap();
    }

    pub(crate) fn status(&self, worker: usize) -> Option<RankStatus> {
        let path = paths::rank_status(&self.path(worker, "run"), 0);
        let text = std::fs::read_to_string(path).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until all given workers have reached a step in a generation.
    pub(crate) fn reaches(&self, workers: &[usize], generation: u64, step: u64) {
        self.until(&format!("step {step} of generation {generation}"), || {
            workers.iter().all(|worker| {
                self.status(*worker)
                    .is_some_and(|s| s.generation == generation && s.step >= step)
            })
        });
    }

    /// Sends a signal to the script of a worker.
    pub(crate) fn signal_script(&self, worker: usize, signal: &str) {
        let log = self.log(worker);
        let line = log.lines().rfind(|line| line.contains("pid ")).unwrap();
        send(signal, line.rsplit(' ').next().unwrap());
    }

    pub(crate) fn signal_agent(&self, worker: usize, signal: &str) {
        send(signal, &self.agents[worker].id().to_string());
    }

    /// The exit code of a worker, if it has ended.
    pub(crate) fn ended(&mut self, worker: usize) -> Option<i32> {
        let status = self.agents[worker].try_wait().unwrap()?;
        Some(status.code().unwrap())
    }

    /// Waits until a worker ends, and returns its exit code and termination message.
    pub(crate) fn end(&mut self, worker: usize) -> (i32, TerminationMessage) {
        let deadline = Instant::now() + DEADLINE;
        let code = loop {
            if let Some(code) = self.ended(worker) {
                break code;
            }
            assert!(
                Instant::now() < deadline,
                "worker {worker} still runs\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        let text = std::fs::read_to_string(self.path(worker, "termination")).unwrap();
        (code, TerminationMessage::parse(&text).unwrap())
    }

    /// Generation and step of every step in the ledger.
    pub(crate) fn ledger(&self) -> Vec<(u64, u64)> {
        let text = std::fs::read_to_string(self.directory.path().join("ledger")).unwrap();
        let line = |line: &str| {
            let (generation, step) = line.split_once(' ').unwrap();
            (generation.parse().unwrap(), step.parse().unwrap())
        };
        text.lines().map(line).collect()
    }

    pub(crate) fn log(&self, worker: usize) -> String {
        std::fs::read_to_string(self.path(worker, "log")).unwrap_or_default()
    }

    pub(crate) fn logs(&self) -> String {
        (0..self.agents.len())
            .map(|worker| format!("--- worker {worker}\n{}", self.log(worker)))
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub(crate) fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !condition() {
            assert!(
                Instant::now() < deadline,
                "not within the deadline: {what}\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn path(&self, worker: usize, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}-{worker}"))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for worker in 0..self.agents.len() {
            if self.agents[worker]
                .try_wait()
                .is_ok_and(|end| end.is_none())
            {
                self.signal_agent(worker, "TERM");
            }
        }
        for agent in &mut self.agents {
            let _ = agent.wait();
        }
    }
}

fn send(signal: &str, pid: &str) {
    let sent = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(sent.unwrap().success());
}

/// A free port below the kernel's range of ephemeral ports. A port of that range could be taken by
/// an outgoing connection before rank 0 listens on it.
fn free_port() -> u16 {
    static NUM_TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(31);
    loop {
        let place = first.wrapping_add(NUM_TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(place).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
