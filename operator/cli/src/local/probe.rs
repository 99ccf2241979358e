//! Checks that a worker is alive: polls its agent over HTTP, as the kubelet's readiness probe does
//! for a pod. A worker whose processes still write their files counts as alive, because they train.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use roundhouse_contract::{paths, ports};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The same values as the readiness probe of a pod.
const PERIOD: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);
const FAILURES: u32 = 3;

/// Polls one agent process until it is dropped.
#[derive(Debug)]
pub(super) struct Probe {
    answers: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Probe {
    /// Polls the agent with this run directory; a file there has the agent's address.
    pub(super) fn start(run_dir: &Path) -> Self {
        Self::with(run_dir, PERIOD, TIMEOUT)
    }

    pub(super) fn with(run_dir: &Path, period: Duration, limit: Duration) -> Self {
        let answers = Arc::new(AtomicBool::new(true));
        let task = tokio::spawn(poll(
            run_dir.to_owned(),
            period,
            limit,
            Arc::clone(&answers),
        ));
        Self { answers, task }
    }

    /// False after several failed polls in a row, until a poll succeeds. True while the agent has
    /// not written its address; older agents never write it.
    pub(super) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn poll(run_dir: PathBuf, period: Duration, limit: Duration, answers: Arc<AtomicBool>) {
    let file = paths::agent_address(&run_dir);
    let (mut failures, mut seen) = (0, None);
    loop {
        sleep(period).await;
        let address = std::fs::read_to_string(&file).ok();
        let Some(address) = address.and_then(|text| text.trim().parse().ok()) else {
            continue;
        };
        let answer = timeout(limit, ask(address)).await;
        let written = newest(&run_dir);
        let writes = std::mem::replace(&mut seen, written) != written;
        failures = if matches!(answer, Ok(Ok(()))) || writes {
            0
        } else {
            failures + 1
        };
        answers.store(failures < FAILURES, Ordering::Relaxed);
    }
}

/// Time of the last write to a file of the processes.
fn newest(run_dir: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(run_dir).ok()?.flatten();
    let times = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
    times.max()
}

async fn ask(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n",
        ports::HEALTHZ_PATH
    );
    stream.write_all(request.as_bytes()).await?;
    // Any answer shows that the agent is alive.
    stream.read_u8().await.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const DEADLINE: Duration = Duration::from_secs(20);

    async fn until(probe: &Probe, answers: bool) {
        let reached = async {
            while probe.answers() != answers {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, reached).await.unwrap();
    }

    #[tokio::test]
    async fn stopped_agent_is_silent_until_it_answers() {
        let directory = tempfile::tempdir().unwrap();
        let probe = Probe::with(directory.path(), SOON, SOON);
        sleep(SOON * 20).await;
        assert!(
            probe.answers(),
            "an agent without an address counts as alive"
        );
        // The kernel accepts connections even for a stopped process.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::fs::write(paths::agent_address(directory.path()), address).unwrap();
        until(&probe, false).await;
        let answering = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            }
        });
        until(&probe, true).await;
        answering.abort();
        until(&probe, false).await;
        // The processes keep training while the agent is stopped.
        let status = paths::rank_status(directory.path(), 0);
        let writing = tokio::spawn(async move {
            loop {
                std::fs::write(&status, "").unwrap();
                sleep(SOON / 4).await;
            }
        });
        until(&probe, true).await;
        sleep(SOON * 20).await;
        assert!(probe.answers());
        writing.abort();
        until(&probe, false).await;
    }
}
