//! Runs helm and kubectl.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use roundhouse_tests::manifests::repository;

use crate::environment::Environment;

/// The directory of kubectl and helm.
pub(super) fn binaries() -> String {
    std::env::var("ROUNDHOUSE_BIN").unwrap()
}

/// Runs helm and kubectl with the API server of the environment.
pub(super) struct Shell {
    server: String,
    home: tempfile::TempDir,
}

impl Shell {
    pub(super) fn new(env: &Environment) -> Self {
        let config = env.server.config("test").unwrap();
        Self {
            server: config.cluster_url.to_string(),
            home: tempfile::TempDir::new().unwrap(),
        }
    }

    pub(super) fn helm(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let server = format!("--kube-apiserver={}", self.server);
        let cluster = [
            &*server,
            "--kube-token=test",
            "--kube-insecure-skip-tls-verify",
        ];
        result_of(self.output("helm", &[arguments, &cluster].concat(), input))
    }

    pub(super) fn kubectl(
        &self,
        verb: &[&str],
        more: &[&str],
        input: &str,
    ) -> Result<String, String> {
        result_of(self.kubectl_output(verb, more, input))
    }

    /// Like [`Self::kubectl`]; the output starts with the warnings.
    pub(super) fn kubectl_with_warnings(
        &self,
        verb: &[&str],
        more: &[&str],
        input: &str,
    ) -> Result<String, String> {
        let output = self.kubectl_output(verb, more, input);
        let printed = [output.stderr, output.stdout].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        if output.status.success() {
            Ok(printed)
        } else {
            Err(printed)
        }
    }

    fn kubectl_output(&self, verb: &[&str], more: &[&str], input: &str) -> Output {
        let server = format!("--server={}", self.server);
        let cluster = [&*server, "--token=test", "--insecure-skip-tls-verify"];
        self.output("kubectl", &[verb, &cluster, more].concat(), input)
    }

    fn output(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let mut child = Command::new(Path::new(&binaries()).join(program))
            .args(arguments)
            .current_dir(repository())
            .env("HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }
}

/// The standard output of a program, or its standard error if it has failed.
fn result_of(output: Output) -> Result<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}
