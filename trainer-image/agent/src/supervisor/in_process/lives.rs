//! A replica of several pods: the operator says when its processes start, in all pods at once.
//!
//! A process that fails ends its siblings in this pod, and those in other pods lose their
//! connections to it and end, too. Each agent reports that the life is over and waits for the next
//! one. An agent that finds the next life first ends the processes of the present one. If the job
//! keeps copies, they first have time to save their parts of the state: see [`super::saving`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use roundhouse_contract::environment::ReplicaPods;
use roundhouse_contract::{ExitCode, ReplicaPlace};

use super::Worker;
use crate::options::Options;
use crate::say::say;
use crate::supervisor::replica::{self, Replica};
use crate::verdict::End;

/// Time between two reads of the file of the place.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The lives of the replica, as far as this pod has seen them.
#[derive(Debug)]
pub(super) struct Lives {
    file: PathBuf,
    text: String,
    present: Option<ReplicaPlace>,
    /// A life whose processes have not started yet, and its file of the replica.
    next: Option<(ReplicaPlace, PathBuf)>,
    /// Whether the processes end because there is another life.
    are_replaced: bool,
}

impl Lives {
    /// `None` if the replica is one pod.
    pub(super) fn of(options: &Options) -> Option<Self> {
        options.has_large_replica().then(|| Self {
            file: options.replica_place_file.clone(),
            text: String::new(),
            present: None,
            next: None,
            are_replaced: false,
        })
    }

    /// The life of the processes that run or have run last; empty before the first.
    pub(super) fn present(&self) -> &str {
        self.present.as_ref().map_or("", |place| &place.life)
    }

    /// What the processes of the present life need to find each other.
    pub(super) fn environment(&self) -> BTreeMap<&'static str, String> {
        let place = self.present.iter();
        place
            .flat_map(|place| ReplicaPods::of(place).to_pairs())
            .collect()
    }

    /// Reads the file. A life that processes of this pod have had, perhaps in a former container,
    /// is over.
    fn look(&mut self, options: &Options) {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        if text == self.text {
            return;
        }
        self.text = text;
        let place = ReplicaPlace::parse(&self.text).filter(|place| is_name(&place.life));
        let Some(place) = place else { return };
        if place.addresses.len() != options.pods_per_replica as usize {
            let (found, own) = (place.addresses.len(), options.pods_per_replica);
            say(&format!(
                "ignoring a place in a replica of {found} pods: this pod is for replicas of {own}"
            ));
            return;
        }
        // A node that has restarted gives its pods other addresses.
        if place.addresses.get(place.pod as usize) != Some(&options.pod_ip) {
            say("ignoring a place in a replica at another address than that of this pod");
            return;
        }
        match replica::claim(&options.run_dir, &place.life) {
            Ok(Some(file)) => self.next = Some((place, file)),
            Ok(None) => {}
            Err(error) => say(&format!("{}: {error}", options.run_dir.display())),
        }
    }
}

/// Whether a text can be part of a file name.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.len() <= 128 && text.bytes().all(is_plain)
}

impl Worker<'_> {
    /// Whether the agent has no processes and waits for a life.
    pub(super) fn awaits_life(&self) -> bool {
        self.lives.is_some() && !self.asked && self.ended.is_empty()
    }

    /// Whether a process ended because its life is over, and not by a failure of its own: there is
    /// another life, or its replica leaves the generation without this pod.
    pub(super) fn ends_with_life(&mut self, local_rank: u32, end: End, was_killed: bool) -> bool {
        let Some(lives) = &self.lives else {
            return false;
        };
        let code = ExitCode::from_code(end.code());
        let has_left = code == Some(ExitCode::Left);
        // Whatever ends it then is most likely the loss of another process.
        let is_permanent = code.is_some_and(ExitCode::is_permanent);
        let is_replaced = lives.are_replaced && (was_killed || !is_permanent);
        let is_over = !self.asked && (has_left || is_replaced);
        if is_over {
            let status = self.status(local_rank);
            if let Some(replica) = &mut self.replica {
                replica.bury(&self.options.run_dir, local_rank, status);
            }
        }
        is_over
    }

    /// Reports the end of a life, and begins the next one.
    pub(super) async fn follow_lives(&mut self) {
        self.end_saving();
        let options = self.options;
        let Some(lives) = &mut self.lives else { return };
        lives.look(options);
        if self.restarts.due().is_some() || !self.ended.is_empty() {
            return;
        }
        let has_next = lives.next.is_some();
        if !self.processes.are_gone() {
            if has_next && !lives.are_replaced {
                say("the replica has another life: ending the processes of this one");
                lives.are_replaced = true;
                self.end_siblings();
            }
            return;
        }
        self.report_end_of_life();
        if has_next {
            self.begin_life().await;
        }
    }

    /// Reports once that no process of the present life is left.
    fn report_end_of_life(&mut self) {
        let life = self.lives.as_ref().map_or("", Lives::present).to_owned();
        if self.replica.as_ref().is_none_or(|it| it.is_reported) {
            return;
        }
        self.note_generations();
        self.restarts.end_life(&life);
        self.restarts.keep(self.options);
        if let Some(replica) = &mut self.replica {
            replica.is_reported = true;
        }
    }

    /// Remembers the generations of the processes: those of the next life join newer ones.
    pub(super) fn note_generations(&mut self) {
        for local_rank in 0..self.options.procs {
            if let Some(status) = self.status(local_rank) {
                self.restarts.has_formed(local_rank, &status);
            }
        }
    }

    async fn begin_life(&mut self) {
        self.clear_replica().await;
        let next = self.lives.as_mut().and_then(|lives| lives.next.take());
        let Some((place, file)) = next else { return };
        say(&format!(
            "life {} of replica {} begins: this is pod {} of {}",
            place.number,
            place.replica,
            place.pod,
            place.addresses.len()
        ));
        self.replica = Some(Replica::with(file));
        if let Some(lives) = &mut self.lives {
            lives.present = Some(place);
            lives.are_replaced = false;
        }
        self.restarts.end_life("");
        self.restarts.keep(self.options);
        if let Err(failure) = self.start_all() {
            say(&failure.to_string());
            // The container ends, and its restart begins another life.
            self.ended.push(failed_to_start());
        }
    }
}

/// What counts as the end of processes that cannot be started.
fn failed_to_start() -> crate::verdict::Ended {
    crate::verdict::Ended {
        local_rank: 0,
        end: End::Exited(ExitCode::Internal.code()),
        on_request: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_that_is_no_file_name_is_ignored() {
        for (text, expected) in [
            ("a1-0-3", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            (&"a".repeat(129), false),
        ] {
            assert_eq!(is_name(text), expected, "{text}");
        }
    }
}
