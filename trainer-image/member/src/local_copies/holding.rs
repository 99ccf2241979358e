//! Takes copies of another worker while this process waits in the lobby: its pod is the holder of
//! that worker (see [`super::holder`]).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roundhouse_contract::{CopyPair, CopyRole};
use roundhouse_report::{say, say_error};

use super::directory::Directory;
use super::holder::read_pair;
use super::server::{Limits, Server};

/// How often the file is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The thread that watches the file of the pair. It ends with the process.
#[derive(Debug)]
pub(super) struct Holding(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    file: PathBuf,
    address: SocketAddr,
    directory: Directory,
    limits: Limits,
    /// Whether this process is a member of a generation or about to become one. Then its volume
    /// holds copies of its own state alone.
    is_member: AtomicBool,
    serving: Mutex<Serving>,
}

#[derive(Debug, Default)]
struct Serving {
    /// The pair that it serves, and the server.
    server: Option<(String, Server)>,
    /// The last error that was logged.
    problem: Option<String>,
}

impl Serving {
    fn serves(&self, id: &str) -> bool {
        self.server.as_ref().is_some_and(|(served, _)| served == id)
    }
}

impl Holding {
    /// Starts to watch the file.
    pub(super) fn start(
        file: PathBuf,
        address: SocketAddr,
        directory: Directory,
        max_bytes: Option<u64>,
    ) -> std::io::Result<Self> {
        let watched = Arc::new(Watched {
            file,
            address,
            directory,
            limits: Limits {
                max_bytes,
                // Only one process sends copies.
                max_connections: 16,
            },
            is_member: AtomicBool::new(false),
            serving: Mutex::default(),
        });
        let of_thread = Arc::clone(&watched);
        let watch = move || {
            loop {
                of_thread.follow_pair();
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        std::thread::Builder::new()
            .name("copies-of-another".to_owned())
            .spawn(watch)?;
        Ok(Self(watched))
    }

    /// Sets whether this process is a member of a generation. When this returns for a member, its
    /// volume does not change any more, except by its own copies.
    pub(super) fn set_member(&self, is_member: bool) {
        self.0.is_member.store(is_member, Ordering::SeqCst);
        if is_member {
            // The thread may hold the lock while a former server ends.
            self.0.lock().server = None;
        }
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the pair that the file names.
    fn follow_pair(&self) {
        let mut serving = self.lock();
        // A member has no server, and need not read the file.
        if self.is_member.load(Ordering::SeqCst) {
            return;
        }
        match read_pair(&self.file, CopyRole::Holder) {
            None => serving.server = None,
            Some(pair) if serving.serves(&pair.id) => {}
            Some(pair) => self.serve(&mut serving, &pair),
        }
    }

    fn serve(&self, serving: &mut Serving, pair: &CopyPair) {
        // The former server has the port.
        serving.server = None;
        let (id, directory) = (pair.id.clone(), self.directory.clone());
        match Server::start(self.address, id.clone(), directory, self.limits) {
            Ok(server) => {
                say(&format!(
                    "this pod holds second copies of the state of pod {}",
                    pair.peer
                ));
                (serving.server, serving.problem) = (Some((id, server)), None);
            }
            Err(error) => {
                let (peer, address) = (&pair.peer, self.address);
                let problem = format!("copies of pod {peer} cannot be taken: {address}: {error}");
                if serving.problem.as_ref() != Some(&problem) {
                    say_error(&problem);
                    serving.problem = Some(problem);
                }
            }
        }
    }
}
