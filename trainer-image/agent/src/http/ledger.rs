//! `GET /ledger` returns the last lines of the ledger, which is on a volume that only workers
//! mount.
//!
//! A volume may not answer for minutes. So a thread beside that of the HTTP server reads it, for
//! one request at a time. Requests that arrive meanwhile get an error, and probes are answered.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use roundhouse_contract::paths;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::sync::Semaphore;

/// Maximum number of lines in an answer.
const MAX_LINES: usize = 200;
/// Maximum number of bytes read from each file; a line has a few hundred.
const MAX_BYTES: u64 = 128 << 10;
/// How long a client waits for the volume.
const TIMEOUT: Duration = Duration::from_secs(5);

/// State of the handler.
#[derive(Clone, Debug)]
pub(super) struct Ledgers {
    directory: Option<PathBuf>,
    /// Has a permit while no request is being answered.
    turn: Arc<Semaphore>,
    timeout: Duration,
}

/// The reason why there are no lines now.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(
        "there is no ledger: the job has no checkpoints, trains in mode Restart, or has not begun"
    )]
    None,
    #[error("the volume has not answered yet: ask again later")]
    Silent,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::None => StatusCode::NOT_FOUND,
            Self::Silent => StatusCode::SERVICE_UNAVAILABLE,
            Self::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{self}\n")).into_response()
    }
}

impl Ledgers {
    /// Creates the state. `checkpoints` is the directory of the job's checkpoints, if it has one.
    pub(super) fn new(checkpoints: Option<&Path>) -> Self {
        Self {
            directory: checkpoints.map(|dir| dir.join(paths::LEDGER_DIR)),
            turn: Arc::new(Semaphore::new(1)),
            timeout: TIMEOUT,
        }
    }

    async fn last_lines(&self) -> Result<String, Refusal> {
        let directory = self.directory.clone().ok_or(Refusal::None)?;
        let turn = Arc::clone(&self.turn).try_acquire_owned();
        let turn = turn.map_err(|_| Refusal::Silent)?;
        let reading = tokio::task::spawn_blocking(move || {
            let lines = last_lines(&directory);
            // A client that has left does not admit the next one before this thread is done.
            drop(turn);
            lines
        });
        let read = tokio::time::timeout(self.timeout, reading).await;
        let lines = read.map_err(|_| Refusal::Silent)?;
        let lines = lines.map_err(io::Error::other)??;
        if lines.is_empty() {
            return Err(Refusal::None);
        }
        Ok(lines)
    }
}

pub(super) async fn ledger(State(ledgers): State<Ledgers>) -> Response {
    match ledgers.last_lines().await {
        Ok(lines) => ([(header::CONTENT_TYPE, "application/jsonl")], lines).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Returns the last lines of the newest generations' files, oldest first.
fn last_lines(directory: &Path) -> io::Result<String> {
    let mut lines: Vec<String> = Vec::new();
    for file in newest_first(directory)? {
        let mut older = tail(&file)?;
        older.append(&mut lines);
        lines = older.split_off(older.len().saturating_sub(MAX_LINES));
        if lines.len() == MAX_LINES {
            break;
        }
    }
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// Returns the files, whose names sort in the order of generations. Before the first
/// step there is none.
fn newest_first(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    if directory.symlink_metadata()?.is_symlink() {
        return Ok(Vec::new());
    }
    let files: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut files = files?;
    files.retain(|file| file.extension().is_some_and(|it| it == "jsonl"));
    files.sort_unstable_by(|a, b| b.cmp(a));
    Ok(files)
}

/// Returns the last lines of a file. An incomplete last line, which is being written, is omitted.
fn tail(file: &Path) -> io::Result<Vec<String>> {
    let Some(mut file) = open(file)? else {
        return Ok(Vec::new());
    };
    let start = file.metadata()?.len().saturating_sub(MAX_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    let cut = usize::from(start > 0);
    Ok(whole.lines().skip(cut).map(str::to_owned).collect())
}

/// Opens regular files only. A job that writes to the same volume may put a link there that leads
/// to a secret of this pod.
fn open(path: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path);
    match file {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
    }
}

#[cfg(test)]
mod tests;
