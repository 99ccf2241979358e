//! Runs the real agent with a shell script, in its own directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use roundhouse_contract::ports::NONCE_HEADER;
use roundhouse_contract::{ProcessRestarts, TerminationMessage, environment, paths};
use roundhouse_process_tree::{Process, processes, send_all, variable};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{FIRST_GENERATION, NONCE};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Variable of the agent and all its descendants, with a directory of their own.
const DIRECTORY: &str = "TMPDIR";

pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) dir: TempDir,
    pub(crate) address: String,
}

impl Agent {
    pub(crate) fn start(procs: u32, script: &str) -> Self {
        Self::start_in(TempDir::new().unwrap(), procs, script)
    }

    pub(crate) fn start_in(dir: TempDir, procs: u32, script: &str) -> Self {
        Self::start_with(dir, procs, script, &[])
    }

    pub(crate) fn start_with(dir: TempDir, procs: u32, script: &str, options: &[&str]) -> Self {
        // The built-in trainer has a configuration file.
        let config = ["--trainer-config-file", "/etc/roundhouse/trainer-config"];
        Self::start_program(dir, procs, script, &[&config, options].concat(), &[])
    }

    /// Starts a script of the user that joins.
    pub(crate) fn start_script(procs: u32, script: &str) -> Self {
        Self::start_program(TempDir::new().unwrap(), procs, script, &[], &[])
    }

    /// Starts a script of the user whose processes together hold one copy of the state.
    pub(crate) fn start_sharded(dir: TempDir, procs: u32, script: &str) -> Self {
        Self::start_program(dir, procs, script, &["--sharded"], &[])
    }

    /// Starts an agent that ends with the test, like the agent of a local executor.
    pub(crate) fn start_bound(script: &str) -> Self {
        let parent = std::process::id().to_string();
        let variables = [(environment::END_WITH_PARENT, &*parent)];
        Self::start_program(TempDir::new().unwrap(), 1, script, &[], &variables)
    }

    /// Starts a script in mode Restart, which waits for its first generation.
    pub(crate) fn start_restarting(script: &str) -> Self {
        Self::start_restarting_with(script, &[], &[])
    }

    /// Starts a script in mode Restart with more options and variables.
    pub(crate) fn start_restarting_with(
        script: &str,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let (dir, mode) = (TempDir::new().unwrap(), ["--mode", "Restart"]);
        Self::start_program(dir, 1, script, &[&mode, options].concat(), variables)
    }

    fn start_program(
        dir: TempDir,
        procs: u32,
        script: &str,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"))
            .envs(variables.iter().copied())
            .env("NCCL_NVLS_ENABLE", "2")
            .env(DIRECTORY, dir.path())
            .args(options)
            .args(["--procs", &procs.to_string(), "--grace-seconds", "1"])
            .args(["--http-address", "127.0.0.1:0", "--worker-index", "3"])
            .arg("--membership-file")
            .arg(dir.path().join("membership"))
            .arg("--run-dir")
            .arg(dir.path().join("run"))
            .arg("--termination-log")
            .arg(dir.path().join("termination"))
            .args(["--", "bash", "-c", script])
            .stdout(std::fs::File::create(dir.path().join("stdout")).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        let mut log = std::fs::File::create(dir.path().join("stderr")).unwrap();
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut log));
        Self {
            child,
            dir,
            address,
        }
    }

    /// Makes the worker the only member of a generation.
    pub(crate) fn join(&self, generation: u32) {
        let first = "\"generation\":1";
        let document = FIRST_GENERATION.replace(first, &format!("\"generation\":{generation}"));
        let file = self.dir.path().join("membership");
        let partial = file.with_extension("partial");
        std::fs::write(&partial, document).unwrap();
        std::fs::rename(partial, file).unwrap();
    }

    /// Sends the request of a client that cannot read the job.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.send(path, "")
    }

    /// Sends the request of a client that may read the job.
    pub(crate) fn get_as_reader(&self, path: &str) -> (u16, String) {
        self.send(path, &format!("{NONCE_HEADER}: {NONCE}\r\n"))
    }

    fn send(&self, path: &str, header: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: a\r\n{header}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    pub(crate) fn run_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("run")
    }

    /// Creates a file in the run directory, for which a script waits.
    pub(crate) fn touch(&self, file: &str) {
        std::fs::write(self.run_dir().join(file), "").unwrap();
    }

    /// What the agent reports of processes that it has restarted.
    pub(crate) fn restarts(&self) -> ProcessRestarts {
        let (code, text) = self.get_as_reader("/restarts");
        assert_eq!(code, 200);
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn stdout(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stdout")).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        send(name, &self.child.id().to_string());
    }

    pub(crate) fn finish(&mut self) -> (ExitStatus, TerminationMessage) {
        let status = until("the agent ends", || self.child.try_wait().unwrap());
        let text = std::fs::read_to_string(self.dir.path().join("termination")).unwrap();
        (status, TerminationMessage::parse(&text).unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // In a pod the kernel kills the processes of a killed agent. One scan is not enough: a
        // process may start another one and end during the scan.
        let directory = self.dir.path().display().to_string();
        let deadline = Instant::now() + DEADLINE;
        let mut clean_scans = 0;
        while clean_scans < 2 && Instant::now() < deadline {
            let left: Vec<Process> = processes()
                .into_iter()
                .filter(|it| variable(it.pid, DIRECTORY).as_ref() == Some(&directory))
                .collect();
            send_all(&left, Signal::KILL);
            clean_scans = if left.is_empty() { clean_scans + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(crate) fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn send(signal: &str, pid: &str) {
    let sent = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(sent.unwrap().success());
}

pub(crate) fn write_status(run_dir: &Path, local_rank: u32, text: &str) {
    std::fs::write(paths::rank_status(run_dir, local_rank), text).unwrap();
}
