//! Takes copies of another worker while this process waits in the lobby: its pod is the holder of
//! that worker (see [`super::holder`]).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roundhouse_contract::CopyRole;
use roundhouse_report::{say, say_error};

use super::directory::Directory;
use super::holder::read;
use super::server::Server;

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
    max_bytes: Option<u64>,
    serving: Mutex<Serving>,
}

#[derive(Debug, Default)]
struct Serving {
    /// Whether this process is a member of a generation or about to become one. Then its volume
    /// holds copies of its own state alone.
    is_member: bool,
    /// The pair that it serves, and the server.
    server: Option<(String, Server)>,
    /// The last error that was logged.
    problem: Option<String>,
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
            max_bytes,
            serving: Mutex::default(),
        });
        let of_thread = Arc::clone(&watched);
        let watch = move || {
            loop {
                of_thread.look();
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
        let mut serving = self.0.lock();
        serving.is_member = is_member;
        if is_member {
            serving.server = None;
        }
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the pair that the file names.
    fn look(&self) {
        let pair = read(&self.file).filter(|pair| pair.role == CopyRole::Holder);
        let mut serving = self.lock();
        let wanted = pair.filter(|_| !serving.is_member);
        let Some(pair) = wanted else {
            serving.server = None;
            return;
        };
        if serving
            .server
            .as_ref()
            .is_some_and(|(id, _)| *id == pair.id)
        {
            return;
        }
        // The former server has the port.
        serving.server = None;
        let (id, directory) = (pair.id.clone(), self.directory.clone());
        match Server::start(self.address, id, directory, self.max_bytes) {
            Ok(server) => {
                say(&format!(
                    "this pod holds second copies of the state of pod {}",
                    pair.peer
                ));
                serving.server = Some((pair.id, server));
                serving.problem = None;
            }
            Err(error) => {
                let problem = format!(
                    "copies of pod {} cannot be taken: {}: {error}",
                    pair.peer, self.address
                );
                if serving.problem.as_ref() != Some(&problem) {
                    say_error(&problem);
                    serving.problem = Some(problem);
                }
            }
        }
    }
}
