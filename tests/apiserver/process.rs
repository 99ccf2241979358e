//! An operator in a process of its own, which may be of another version, and may be stopped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::Stage;

/// Ends with the value.
pub(crate) struct OperatorProcess {
    child: Child,
    log: PathBuf,
}

impl OperatorProcess {
    /// Its log goes to a file of this name.
    pub(crate) fn start(stage: &Stage, name: &str, program: &Path, arguments: &[&str]) -> Self {
        let path = stage.directory.path().join(name);
        let log = std::fs::File::create(&path).unwrap();
        let child = Command::new(program)
            .env("KUBECONFIG", stage.server.kubeconfig("operator").unwrap())
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

/// The program that this variable names.
pub(crate) fn program(variable: &str) -> PathBuf {
    let program = std::env::var_os(variable);
    let program = program.map(PathBuf::from);
    program.unwrap_or_else(|| panic!("{variable} is not set: make test-long sets it"))
}
