//! Starts and stops the operator's process.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use roundhouse_tests::cluster::until;

/// The operator's process. It is killed when the value is dropped.
pub(crate) struct Operator {
    child: Child,
    port: u16,
}

impl Operator {
    pub(crate) async fn start(program: &Path, kubeconfig: &Path) -> anyhow::Result<Self> {
        let log = std::fs::File::create(kubeconfig.with_file_name("operator.log"))?;
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let child = Command::new(program)
            .env("KUBECONFIG", kubeconfig)
            .args([&format!("--http-address={port}"), "--log-level=warn"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let operator = Self {
            child,
            port: port.port(),
        };
        until("the operator serves", Duration::from_secs(30), || async {
            Ok(tokio::net::TcpStream::connect(port).await.ok().map(drop))
        })
        .await?;
        Ok(operator)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The port of its metrics.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
