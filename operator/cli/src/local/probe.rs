//! Whether a worker gives a sign of life: its agent is asked over HTTP as the kubelet asks the agent of a pod. While its
//! processes write their files it is not given up, because they train.

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

/// The numbers of a pod's readiness probe.
const PERIOD: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);
const FAILURES: u32 = 3;

/// Asks one life of an agent until it is dropped.
#[derive(Debug)]
pub(super) struct Probe {
    answers: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Probe {
    /// Of the agent with this run directory, where it says its address.
    pub(super) fn start(run_dir: &Path) -> Self {
        Self::with(run_dir, PERIOD, TIMEOUT)
    }

    pub(super) fn with(run_dir: &Path, period: Duration, limit: Duration) -> Self {
        let answers = Arc::new(AtomicBool::new(true));
        let task = tokio::spawn(ask_on(
            run_dir.to_owned(),
            period,
            limit,
            Arc::clone(&answers),
        ));
        Self { answers, task }
    }

    /// False once it has given no sign of life several times in a row, until it does. One that has not said its address yet, as
    /// an older one never does, is not judged.
    pub(super) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ask_on(run_dir: PathBuf, period: Duration, limit: Duration, answers: Arc<AtomicBool>) {
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

/// When a file of the processes was written last.
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
    // Whatever it answers, it is alive.
    stream.read_u8().await.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const DEADLINE: Duration = Duration::from_secs(20);

    async fn until(probe: &Probe, answers: bool) {
        let told = async {
            while probe.answers() != answers {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, told).await.unwrap();
    }

    #[tokio::test]
    async fn an_agent_that_is_stopped_gives_no_sign_of_life_until_it_answers() {
        let directory = tempfile::tempdir().unwrap();
        let probe = Probe::with(directory.path(), SOON, SOON);
        sleep(SOON * 20).await;
        assert!(
            probe.answers(),
            "an agent that has no address is not judged"
        );
        // The kernel accepts connections for a process that is stopped.
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
        // Its processes train on without it.
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
