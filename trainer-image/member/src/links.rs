//! Connections between the processes of a replica, for its life.
//!
//! The processes of a replica hold one copy of the state together, so they must commit the same
//! steps. A sum over all ranks may succeed in one of them and fail in another. Therefore each
//! process reports to its siblings that the sum of a step has succeeded, and commits only if it has
//! in all of them. A process that leaves a generation after a failure reports that and does not
//! wait: it may be in the lobby when a sibling asks.
//!
//! The processes also sum numbers over these connections, in the order of the processes, so the
//! sums are equal bit for bit. Each exchange is a turn. The processes take the same turns in a
//! generation.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::environment::ReplicaPods;

use crate::blocking::Waited;
use crate::failure::Failure;

mod connections;
mod pods;
mod socket;
mod vote;

use pods::Pods;
use socket::{Directory, Socket};

pub use connections::Connections;
pub use vote::NUM_NUMBERS;
use vote::{Says, VOTE_BYTES, Vote};

/// Pause between two attempts to reach a sibling that has not started yet.
const RETRY: Duration = Duration::from_millis(5);
/// A sibling, and its vote of a later generation.
#[derive(Debug)]
struct Sibling {
    shard: u32,
    stream: Socket,
    early: Option<Vote>,
}

/// Where the processes of a replica find each other.
trait MeetingPlace {
    /// Connects to a sibling that listens. The error is [`ErrorKind::WouldBlock`] or a refusal
    /// while it does not.
    fn connect(&self, shard: u32) -> std::io::Result<Socket>;

    /// Returns a sibling that has connected to this process. The error is
    /// [`ErrorKind::WouldBlock`] while there is none.
    fn accept(&self) -> std::io::Result<(u32, Socket)>;

    /// What messages call the place.
    fn name(&self) -> String;
}

/// The connections of one process to its siblings.
#[derive(Debug)]
pub struct Links {
    shard: u32,
    siblings: Vec<Sibling>,
}

impl Links {
    /// Connects the processes of a replica in one pod. All of them pass the same `file`, in a
    /// directory that only this life of the replica uses. Calls `is_pointless` regularly while it
    /// waits for them, and returns `None` once it is true.
    ///
    /// # Errors
    /// [`Failure::ReplicaLost`] if a sibling does not come within `timeout`, [`Failure::Io`] if the
    /// directory cannot be used.
    pub fn meet(
        file: &Path,
        shard: u32,
        num_shards: u32,
        timeout: Duration,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, Failure> {
        let directory = file.parent().unwrap_or(Path::new("/"));
        let opened = Directory::open(directory, shard).map_err(|error| Failure::Io {
            path: directory.to_owned(),
            error,
        })?;
        Self::meet_at(&opened, shard, num_shards, timeout, is_pointless)
    }

    /// Connects the processes of a replica of several pods, each of which has `procs` of them. Only
    /// processes of the same life connect.
    ///
    /// # Errors
    /// [`Failure::ReplicaLost`] if a sibling does not come within `timeout`, [`Failure::Io`] if
    /// this process cannot listen at its address.
    pub fn meet_pods(
        pods: &ReplicaPods,
        local_rank: u32,
        procs: u32,
        timeout: Duration,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, Failure> {
        let opened = Pods::listen(pods, local_rank, procs)?;
        let (shard, num_shards) = (pods.pod * procs + local_rank, pods.num_pods() * procs);
        Self::meet_at(&opened, shard, num_shards, timeout, is_pointless)
    }

    fn meet_at(
        site: &impl MeetingPlace,
        shard: u32,
        num_shards: u32,
        timeout: Duration,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, Failure> {
        let deadline = Instant::now() + timeout;
        let mut siblings: Vec<Sibling> = Vec::new();
        while siblings.len() + 1 < num_shards as usize {
            let is_known = |shard: &u32| siblings.iter().any(|it| it.shard == *shard);
            let others = (0..num_shards).filter(|it| *it != shard);
            let missing = others.into_iter().find(|it| !is_known(it)).unwrap_or(shard);
            // Those before this process listen; those after it connect, in any order.
            let mut attempt = || {
                if missing < shard {
                    Ok((missing, site.connect(missing)?))
                } else {
                    site.accept()
                }
            };
            let met = until(deadline, is_pointless, &mut attempt);
            let met = met.map_err(|error| Failure::Io {
                path: site.name().into(),
                error,
            })?;
            let (found, stream) = match met {
                Waited::Returned(met) => met,
                Waited::Pointless => return Ok(None),
                Waited::TooLate => return Err(did_not_come(missing, timeout)),
            };
            // A sibling whose first attempt was cut connects again.
            siblings.retain(|sibling| sibling.shard != found);
            siblings.push(Sibling::of(found, stream));
        }
        siblings.sort_by_key(|sibling| sibling.shard);
        Ok(Some(Self { shard, siblings }))
    }

    /// Index of this process in its replica.
    #[must_use]
    pub const fn shard(&self) -> u32 {
        self.shard
    }

    /// Number of processes of the replica.
    #[must_use]
    pub fn num_shards(&self) -> u32 {
        u32::try_from(self.siblings.len() + 1).unwrap_or(u32::MAX)
    }

    /// Returns `own` of the first process in all of them. All call it before the first vote.
    ///
    /// # Errors
    /// [`Failure::ReplicaLost`] if a sibling is gone or silent for `timeout`.
    pub fn of_first(&mut self, own: u64, timeout: Duration) -> Result<u64, Failure> {
        if self.shard == 0 {
            for sibling in &mut self.siblings {
                sibling.send(&own.to_le_bytes())?;
            }
            return Ok(own);
        }
        let mut number = [0; 8];
        match self.siblings.first_mut() {
            Some(first) => first.receive(&mut number, timeout)?,
            None => return Ok(own),
        }
        Ok(u64::from_le_bytes(number))
    }

    /// Takes a turn: returns the sums of the numbers of all processes, which are the same bit for
    /// bit in all of them; `None` if one of them has failed in this generation. Then none of them
    /// has the sums.
    ///
    /// # Errors
    /// [`Failure::ReplicaLost`] if a sibling is gone or silent for `timeout`.
    pub fn sum(
        &mut self,
        generation: u64,
        turn: u64,
        own: [f64; NUM_NUMBERS],
        timeout: Duration,
    ) -> Result<Option<[f64; NUM_NUMBERS]>, Failure> {
        self.send(Vote {
            generation,
            turn,
            succeeded: true,
            numbers: own,
        })?;
        let mut all = vec![(self.shard, own)];
        let mut has_failed = false;
        for sibling in &mut self.siblings {
            match sibling.numbers(generation, turn, timeout)? {
                Some(numbers) => all.push((sibling.shard, numbers)),
                None => has_failed = true,
            }
        }
        if has_failed {
            return Ok(None);
        }
        all.sort_unstable_by_key(|(shard, _)| *shard);
        let mut sums = [0.0; NUM_NUMBERS];
        for (_, numbers) in all {
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum += number;
            }
        }
        Ok(Some(sums))
    }

    /// Checks that no sibling has closed its connection. It returns at once.
    ///
    /// # Errors
    /// [`Failure::ReplicaLost`] if one has, or if a socket has failed.
    pub fn check(&self) -> Result<(), Failure> {
        for sibling in &self.siblings {
            match sibling.stream.is_closed() {
                Ok(false) => {}
                Ok(true) => return Err(sibling.is_lost(&ErrorKind::UnexpectedEof.into())),
                // The process has received a signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(sibling.is_lost(&error)),
            }
        }
        Ok(())
    }

    /// The connections, so that another thread can end them.
    ///
    /// # Errors
    /// This process has too many open files.
    pub fn connections(&self) -> std::io::Result<Connections> {
        Connections::of(self.siblings.iter().map(|sibling| &sibling.stream))
    }

    /// Reports that this process takes no further turn in the generations before this one. It does
    /// not wait.
    pub fn enters(&mut self, generation: u64) {
        // A sibling that is gone needs no answer.
        let _ = self.send(Vote {
            generation,
            turn: 0,
            succeeded: true,
            numbers: [0.0; NUM_NUMBERS],
        });
    }

    /// Says that this process leaves the generation after a failure. It does not wait.
    pub fn fails(&mut self, generation: u64) {
        // A sibling that is gone needs no answer.
        let _ = self.send(Vote {
            generation,
            turn: 0,
            succeeded: false,
            numbers: [0.0; NUM_NUMBERS],
        });
    }

    /// Sends to all siblings, also if one of them is gone.
    fn send(&mut self, vote: Vote) -> Result<(), Failure> {
        let bytes = vote.to_bytes();
        let sent = self.siblings.iter_mut().map(|it| it.send(&bytes));
        sent.fold(Ok(()), Result::and)
    }
}

impl Sibling {
    const fn of(shard: u32, stream: Socket) -> Self {
        Self {
            shard,
            stream,
            early: None,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = self.stream.write(bytes);
        sent.map_err(|error| self.is_lost(&error))
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> Result<(), Failure> {
        let received = self.stream.read(bytes, timeout);
        received.map_err(|error| self.is_lost(&error))
    }

    /// The numbers of a turn; `None` if the sibling has failed in this generation.
    fn numbers(
        &mut self,
        generation: u64,
        turn: u64,
        timeout: Duration,
    ) -> Result<Option<[f64; NUM_NUMBERS]>, Failure> {
        loop {
            let vote = if let Some(vote) = self.early.take() {
                vote
            } else {
                let mut bytes = [0; VOTE_BYTES];
                self.receive(&mut bytes, timeout)?;
                Vote::of(bytes)
            };
            match vote.says_of(generation, turn) {
                Says::Nothing => {}
                Says::Succeeded => return Ok(Some(vote.numbers)),
                Says::Failed => return Ok(None),
                Says::FailedAndLeft => {
                    self.early = Some(vote);
                    return Ok(None);
                }
            }
        }
    }

    fn is_lost(&self, error: &std::io::Error) -> Failure {
        let reason = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not answer".to_owned(),
            _ => format!("is gone ({error})"),
        };
        Failure::ReplicaLost(format!("process {} of this worker {reason}", self.shard))
    }
}

fn did_not_come(shard: u32, timeout: Duration) -> Failure {
    let seconds = timeout.as_secs();
    Failure::ReplicaLost(format!(
        "process {shard} of this worker has not come within {seconds} s"
    ))
}

/// Repeats `attempt` until the sibling is there.
fn until<T>(
    deadline: Instant,
    is_pointless: &mut dyn FnMut() -> bool,
    attempt: &mut dyn FnMut() -> std::io::Result<T>,
) -> std::io::Result<Waited<T>> {
    loop {
        match attempt() {
            Ok(found) => return Ok(Waited::Returned(found)),
            Err(error) => match error.kind() {
                ErrorKind::NotFound
                | ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof
                | ErrorKind::TimedOut
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::WouldBlock
                | ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
        if is_pointless() {
            return Ok(Waited::Pointless);
        }
        if Instant::now() >= deadline {
            return Ok(Waited::TooLate);
        }
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests;
