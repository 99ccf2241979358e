//! Progress that a training loop posts by itself. Transformers' Trainer has a client for Kubeflow's
//! KEP-2779, which it uses if a variable names a server. So the agent serves that protocol, and a
//! script of Transformers shows its steps without a line of its own.
//!
//! It does so in restart mode. A script that joins reports its committed steps through the package
//! `roundhouse`, and the operator bases decisions on them.
//!
//! The server listens on the loopback address alone. Each process has a token of its own for each
//! start, so a post belongs to one process of one generation. What arrives here counts like the
//! file of a script's progress; a post that is wrong changes nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roundhouse_contract::ScriptProgress;

use crate::say::say;

mod access;
mod endpoint;
mod report;
mod training;

use report::Report;
use training::Training;

/// The posts of all processes of the worker. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// Where the processes post; `None` if they cannot or need not.
    url: Option<String>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The processes that may post, by local rank.
    processes: BTreeMap<u32, Process>,
    /// Whether the log has named a post with an unknown token since the last start of a process.
    has_named_unknown: bool,
}

/// A process that may post.
#[derive(Debug)]
struct Process {
    token: String,
    training: Training,
    /// Whether the log has named an unreadable post of this process.
    has_named_unreadable: bool,
}

/// What became of a post. `is_first` says that the log has to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received<E> {
    Taken,
    Unreadable {
        local_rank: u32,
        why: E,
        is_first: bool,
    },
    UnknownToken {
        is_first: bool,
    },
}

impl Reports {
    /// Starts to listen unless the user has set a server. If that fails, the script trains without.
    pub(crate) async fn listen(&mut self) {
        if !access::is_free(|name| std::env::var(name).ok()) {
            return;
        }
        match endpoint::start(self.clone()).await {
            Ok(url) => self.url = Some(url),
            Err(error) => say(&format!(
                "cannot listen for posts of progress: {error}; training continues without them"
            )),
        }
    }

    /// Begins the reports of a process that is about to start. Returns the variables that it needs
    /// to post. Posts of the process before it are refused from now on.
    pub(crate) fn begin(&self, run_dir: &Path, local_rank: u32) -> Vec<(&'static str, String)> {
        let Some(url) = &self.url else {
            return Vec::new();
        };
        // Whatever follows, the progress of the process before is not that of the new one.
        self.lock().processes.remove(&local_rank);
        match access::grant(run_dir, local_rank) {
            Ok(token) => {
                self.expect(local_rank, token);
                access::variables(url, run_dir, local_rank, |name| std::env::var(name).ok())
            }
            Err(error) => {
                say(&format!(
                    "process {local_rank} cannot post its progress: its token cannot be written: {error}"
                ));
                Vec::new()
            }
        }
    }

    fn expect(&self, local_rank: u32, token: String) {
        let process = Process {
            token,
            training: Training::default(),
            has_named_unreadable: false,
        };
        let mut state = self.lock();
        state.processes.insert(local_rank, process);
        state.has_named_unknown = false;
    }

    /// The progress that a process has posted since its start.
    #[must_use]
    pub fn of(&self, local_rank: u32) -> Option<ScriptProgress> {
        let state = self.lock();
        state.processes.get(&local_rank)?.training.progress()
    }

    /// Whether the training loop of a process has ended, according to its last post.
    #[must_use]
    pub fn is_complete(&self, local_rank: u32) -> bool {
        let state = self.lock();
        let process = state.processes.get(&local_rank);
        process.is_some_and(|process| process.training.is_complete())
    }

    /// Takes a post into account, or decides why not.
    fn receive<E>(&self, token: Option<&str>, report: Result<Report, E>) -> Received<E> {
        let mut state = self.lock();
        let State {
            processes,
            has_named_unknown,
        } = &mut *state;
        let found = processes
            .iter_mut()
            .find(|(_, process)| token == Some(process.token.as_str()));
        let Some((local_rank, process)) = found else {
            let is_first = !std::mem::replace(has_named_unknown, true);
            return Received::UnknownToken { is_first };
        };
        match report {
            Ok(report) => {
                process.training.apply(report);
                Received::Taken
            }
            Err(why) => Received::Unreadable {
                local_rank: *local_rank,
                why,
                is_first: !std::mem::replace(&mut process.has_named_unreadable, true),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(reports: &Reports, token: Option<&str>, step: u64) -> Received<()> {
        let step = Some(step);
        let report = Report {
            step,
            ..Report::default()
        };
        reports.receive(token, Ok(report))
    }

    fn step(reports: &Reports, local_rank: u32) -> Option<u64> {
        reports.of(local_rank).map(|progress| progress.step)
    }

    #[test]
    fn token_names_the_process_that_posts() {
        let reports = Reports::default();
        reports.expect(0, "a".to_owned());
        reports.expect(1, "b".to_owned());
        assert_eq!(post(&reports, Some("b"), 7), Received::Taken);
        assert_eq!((step(&reports, 0), step(&reports, 1)), (None, Some(7)));
    }

    #[test]
    fn token_of_an_earlier_start_is_refused() {
        let reports = Reports::default();
        reports.expect(0, "a".to_owned());
        post(&reports, Some("a"), 7);
        reports.expect(0, "b".to_owned());
        assert_eq!(step(&reports, 0), None);
        for (token, is_first) in [(Some("a"), true), (None, false), (Some(""), false)] {
            let received = post(&reports, token, 8);
            assert_eq!(received, Received::UnknownToken { is_first }, "{token:?}");
        }
        assert_eq!(step(&reports, 0), None);
    }

    #[test]
    fn process_without_a_token_has_no_earlier_progress() {
        let reports = Reports {
            url: Some("http://127.0.0.1:1/".to_owned()),
            ..Reports::default()
        };
        reports.expect(0, "a".to_owned());
        post(&reports, Some("a"), 7);
        let missing = Path::new("/nonexistent");
        assert_eq!(reports.begin(missing, 0), []);
        assert_eq!(step(&reports, 0), None);
    }

    #[test]
    fn unreadable_post_keeps_the_last_progress() {
        let reports = Reports::default();
        reports.expect(3, "a".to_owned());
        post(&reports, Some("a"), 7);
        for is_first in [true, false] {
            let expected = Received::Unreadable {
                local_rank: 3,
                why: "not JSON",
                is_first,
            };
            assert_eq!(reports.receive(Some("a"), Err("not JSON")), expected);
        }
        assert_eq!(step(&reports, 3), Some(7));
    }
}
