//! An operator in a separate process, which can be of another version and can be paused.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use super::Environment;

/// Kills the process when it is dropped.
pub(crate) struct OperatorProcess {
    child: Child,
    log: PathBuf,
}

impl OperatorProcess {
    /// Starts the operator. Its log goes to the file `name` in the directory of the test.
    pub(crate) fn start(env: &Environment, name: &str, program: &Path, arguments: &[&str]) -> Self {
        let path = env.directory.path().join(name);
        let log = std::fs::File::create(&path).unwrap();
        let child = Command::new(program)
            .env("KUBECONFIG", env.server.kubeconfig("operator").unwrap())
            .arg("--http-address=127.0.0.1:0")
            .args(arguments)
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn();
        Self {
            child: child.unwrap(),
            log: path,
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of the program that the environment variable contains.
pub(crate) fn program_of(variable: &str) -> PathBuf {
    let program = std::env::var_os(variable);
    let program = program.map(PathBuf::from);
    program.unwrap_or_else(|| panic!("{variable} is not set: make test-long sets it"))
}
