//! Derives how the worker ends from how its processes ended.

use std::time::Duration;

use roundhouse_contract::{ExitCode, RankStatus, TerminationMessage, termination::Reason};

mod scripts;

pub use scripts::{before_join, completed_script, unfinished};

/// Time to wait for the true cause: a process that lost a peer may only show that a sibling died.
pub const CAUSE_WINDOW: Duration = Duration::from_millis(500);

/// The end of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process exited with this code.
    Exited(i32),
    /// This signal killed the process.
    Signaled(i32),
}

impl End {
    /// Exit code in the convention of a shell: 128 + n for signal n.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
        }
    }

    /// Whether the end may be the consequence of another process's end.
    #[must_use]
    pub fn is_peer_failure(self) -> bool {
        self == Self::Exited(ExitCode::PeerLost.code())
    }
}

/// A process that ended. Lists of these are in the order of the ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Local rank of the process.
    pub local_rank: u32,
    /// How the process ended.
    pub end: End,
    /// Whether the agent had asked the process to end.
    pub on_request: bool,
}

impl Ended {
    /// Whether the process completed.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.end == End::Exited(0)
    }
}

/// Returns the end that explains the others: the first process that failed without losing a peer,
/// or else the first that failed. `None` if none failed.
#[must_use]
pub fn cause(ended: &[Ended]) -> Option<&Ended> {
    let failed = |ended: &&Ended| ended.end != End::Exited(0) && !ended.on_request;
    let own = |ended: &&Ended| failed(ended) && !ended.end.is_peer_failure();
    ended.iter().find(own).or_else(|| ended.iter().find(failed))
}

/// Returns the termination message of a process: its own report if there is one.
/// `has_memory`: whether no OOM kill has happened in the container since this process
/// started, if the kernel reports it.
#[must_use]
pub fn explain(
    end: End,
    own_words: Option<TerminationMessage>,
    status: Option<&RankStatus>,
    last_line: Option<&str>,
    has_memory: Option<bool>,
) -> TerminationMessage {
    if let Some(message) = own_words {
        return message;
    }
    let (reason, what) = match end {
        End::Exited(code) => match ExitCode::from_code(code) {
            Some(known) => (Reason::of(known), format!("exit code {code}")),
            None => (Reason::Crashed, format!("exit code {code}")),
        },
        End::Signaled(9) => (
            Reason::Killed,
            match has_memory {
                Some(false) => {
                    "killed by SIGKILL: the container ran out of memory (resources.limits.memory)"
                }
                Some(true) => "killed by SIGKILL; the container has not run out of memory",
                None => {
                    "killed by SIGKILL: it may have run out of memory (resources.limits.memory)"
                }
            }
            .to_owned(),
        ),
        End::Signaled(signal) => (Reason::Killed, format!("killed by signal {signal}")),
    };
    // What a process wrote before it was killed does not explain that.
    let message = match last_line.filter(|_| end != End::Signaled(9)) {
        Some(line) => format!("{what}; last line of its log: {line}"),
        None => what,
    };
    at(status, reason, message)
}

/// A message with the rank, generation and step of a process's last status.
fn at(status: Option<&RankStatus>, reason: Reason, message: String) -> TerminationMessage {
    TerminationMessage {
        reason,
        rank: status.and_then(|status| status.rank),
        generation: status.map_or(0, |status| status.generation),
        step: status.map_or(0, |status| status.step),
        message,
        progress: None,
    }
}

/// Returns the message of a worker whose processes all completed.
#[must_use]
pub fn completed(status: Option<RankStatus>) -> TerminationMessage {
    let (rank, generation, step, progress) = match status {
        Some(RankStatus {
            phase: _,
            rank,
            generation,
            step,
            forming: _,
            volume_moves: _,
            patience_seconds: _,
            progress,
        }) => (rank, generation, step, progress),
        None => (None, 0, 0, None),
    };
    let message = format!("training is complete after {step} steps");
    TerminationMessage {
        reason: Reason::Completed,
        rank,
        generation,
        step,
        message,
        progress,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(local_rank: u32, end: End) -> Ended {
        Ended {
            local_rank,
            end,
            on_request: false,
        }
    }

    #[test]
    fn lost_peer_is_not_the_cause_if_a_process_died() {
        let both = [ended(0, End::Exited(75)), ended(1, End::Signaled(9))];
        assert_eq!(cause(&both).unwrap().local_rank, 1);
    }

    #[test]
    fn lost_peer_is_the_cause_if_no_process_failed() {
        let both = [ended(0, End::Exited(0)), ended(1, End::Exited(75))];
        assert_eq!(cause(&both).unwrap().local_rank, 1);
    }

    #[test]
    fn process_asked_to_end_is_never_the_cause() {
        let asked = Ended {
            on_request: true,
            ..ended(0, End::Signaled(15))
        };
        assert_eq!(
            cause(&[asked.clone(), ended(1, End::Exited(70))])
                .unwrap()
                .local_rank,
            1
        );
        assert_eq!(cause(&[asked]), None);
    }

    #[test]
    fn process_without_a_report_is_explained_by_its_status() {
        let status: RankStatus =
            serde_json::from_str(r#"{"phase":"Training","rank":3,"generation":2,"step":17}"#)
                .unwrap();
        let message = explain(End::Signaled(9), None, Some(&status), Some("oh"), None);
        assert_eq!(
            (message.reason, message.rank, message.step),
            (Reason::Killed, Some(3), 17)
        );
        let said = &message.message;
        assert!(said.starts_with("killed by SIGKILL") && !said.contains("oh"));
        let crashed = explain(End::Exited(1), None, None, Some("oh"), None);
        assert!(crashed.message.ends_with("; last line of its log: oh"));
        for (has_memory, words) in [(false, "ran out of memory"), (true, "has not run out")] {
            let killed = explain(End::Signaled(9), None, None, None, Some(has_memory));
            assert!(killed.message.contains(words), "{killed:?}");
        }
        assert_eq!(
            explain(End::Exited(1), None, None, None, None).reason,
            Reason::Crashed
        );
        assert_eq!(
            explain(End::Exited(65), None, None, None, None).reason,
            Reason::DataInvalid
        );
    }
}
