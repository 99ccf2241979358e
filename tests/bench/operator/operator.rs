//! The operator's process, and what it takes of the machine.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use roundhouse_tests::cluster::until;

/// A process that ends with the value.
pub(crate) struct Operator(Child);

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
        let operator = Self(child);
        until("the operator serves", Duration::from_secs(30), || async {
            Ok(tokio::net::TcpStream::connect(port).await.ok().map(drop))
        })
        .await?;
        Ok(operator)
    }

    /// Most resident memory so far, in MiB.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no VmHWM")?.parse::<f64>()? / 1024.0)
    }

    /// Seconds of CPU time so far.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // After the name, which is in parentheses: user and system time are the 12th and 13th.
        let (_, rest) = stat.rsplit_once(')').context("no name")?;
        let ticks = rest
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(str::parse::<f64>);
        let ticks: Vec<f64> = ticks.collect::<Result<_, _>>()?;
        Ok(ticks.iter().sum::<f64>() / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Part of a core that it takes within that time.
    pub(crate) async fn load(&self, time: Duration) -> anyhow::Result<f64> {
        let (before, begun) = (self.cpu_time()?, Instant::now());
        tokio::time::sleep(time).await;
        Ok((self.cpu_time()? - before) / begun.elapsed().as_secs_f64())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
