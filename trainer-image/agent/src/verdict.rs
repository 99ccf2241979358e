//! Derives how the worker ends from how its processes ended.

use std::time::Duration;

use roundhouse_contract::{ExitCode, Phase, RankStatus, TerminationMessage, termination::Reason};

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

/// Returns the termination message for a script process that exited with code 0 before its
/// work was done: it never joined, or left its loop early. A restart cannot help. `status`
/// is its last status.
#[must_use]
pub fn unfinished(end: End, status: Option<&RankStatus>) -> Option<TerminationMessage> {
    if end != End::Exited(0) {
        return None;
    }
    let joined = status.filter(|status| status.phase != Phase::Preparing);
    let message = match joined {
        None => "the script ended without a call of roundhouse.join(): add the call, or use roundhouse.hf.Trainer or \
                 strategy=roundhouse.lightning.Elastic(...); for a script that runs under torchrun, set \
                 spec.elastic.mode to Restart"
            .to_owned(),
        Some(status) if status.phase == Phase::Done => return None,
        Some(status) => {
            let total = status.progress.as_ref().map(|it| it.total_steps);
            let of = total.filter(|total| *total > 0);
            let of = of.map_or_else(String::new, |total| format!(" of {total}"));
            format!(
                "the script ended with exit code 0 at step {}{of}, but its training is not complete: use `with \
                 roundhouse.join(...) as job:`, and leave the block when its loop is over",
                status.step
            )
        }
    };
    Some(TerminationMessage {
        reason: Reason::ConfigInvalid,
        rank: joined.and_then(|status| status.rank),
        generation: joined.map_or(0, |status| status.generation),
        step: joined.map_or(0, |status| status.step),
        message,
        progress: None,
    })
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

/// Returns the message of a worker whose processes all exited with code 0 in restart mode. Its
/// steps are those that the script reported, which may do more after its last report.
#[must_use]
pub fn completed_script(status: Option<RankStatus>) -> TerminationMessage {
    let mut message = completed(status);
    let total = message.progress.as_ref().map_or(0, |it| it.total_steps);
    let of = match total {
        0 => String::new(),
        total => format!(" of {total}"),
    };
    let step = message.step;
    if step == 0 {
        "all processes exited with code 0".clone_into(&mut message.message);
    } else if total == 0 || step < total {
        message.message = format!(
            "all processes exited with code 0; the last step that the script reported was {step}{of}"
        );
    }
    message
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::Progress;

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
    fn exit_code_0_of_a_script_requires_complete_training() {
        let status = |phase: &str| -> RankStatus {
            let text = format!(r#"{{"phase":"{phase}","generation":2,"step":10}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let (not_joined, early) = (Some("roundhouse.join(): add"), Some("at step 10, but"));
        for (end, status, expected) in [
            (End::Exited(0), None, not_joined),
            (End::Exited(0), Some(status("Preparing")), not_joined),
            (End::Exited(0), Some(status("Lobby")), early),
            (End::Exited(0), Some(status("Training")), early),
            (End::Exited(0), Some(status("Done")), None),
            (End::Exited(1), None, None),
            (End::Signaled(9), None, None),
        ] {
            let found = unfinished(end, status.as_ref());
            let is_expected = match (&found, expected) {
                (Some(found), Some(words)) => found.message.contains(words),
                (found, words) => found.is_none() && words.is_none(),
            };
            assert!(is_expected, "{end:?} {status:?}: {found:?}");
        }
    }

    #[test]
    fn completed_script_claims_no_unreported_step() {
        for (step, total, expected) in [
            (
                103,
                240,
                "the last step that the script reported was 103 of 240",
            ),
            (103, 0, "the last step that the script reported was 103"),
            (240, 240, "training is complete after 240 steps"),
            (0, 0, "all processes exited with code 0"),
        ] {
            let text = format!(r#"{{"phase":"Training","generation":2,"step":{step}}}"#);
            let mut status: RankStatus = serde_json::from_str(&text).unwrap();
            status.progress = Some(Progress {
                step,
                total_steps: total,
                ..Progress::default()
            });
            let message = completed_script(Some(status));
            assert!(message.message.ends_with(expected), "{message:?}");
            assert_eq!((message.reason, message.step), (Reason::Completed, step));
        }
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
