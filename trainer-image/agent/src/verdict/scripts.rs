//! Termination messages that only processes of scripts have.

use roundhouse_contract::{Phase, RankStatus, TerminationMessage, termination::Reason};

use super::{End, at, completed};

/// Part of PyTorch's error if a script starts `torch.distributed` by itself and the variables of
/// torchrun are not set.
const NEEDS_TORCHRUN: &str = "using env:// rendezvous";

/// Returns the termination message for a script process that exited with code 0 before its
/// work was done: it never joined, or left its loop early. A restart cannot help. `status`
/// is its last status.
#[must_use]
pub fn unfinished(end: End, status: Option<&RankStatus>) -> Option<TerminationMessage> {
    if end != End::Exited(0) {
        return None;
    }
    let joined = joined(status);
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
    Some(at(joined, Reason::ConfigInvalid, message))
}

/// The last status of a process whose script has joined.
fn joined(status: Option<&RankStatus>) -> Option<&RankStatus> {
    status.filter(|status| status.phase != Phase::Preparing)
}

/// Adds to the message of a crash that the script had not joined, with advice for a script for
/// torchrun. `message` comes from [`explain`](super::explain) and not from the process. `status` is
/// the last status of the process.
#[must_use]
pub fn before_join(message: TerminationMessage, status: Option<&RankStatus>) -> TerminationMessage {
    if joined(status).is_some() || message.reason != Reason::Crashed {
        return message;
    }
    let advice = if message.message.contains(NEEDS_TORCHRUN) {
        "the script starts torch.distributed by itself: set spec.elastic.mode to Restart, or call roundhouse.join() instead \
         of init_process_group"
    } else {
        "the script had not called roundhouse.join() yet"
    };
    TerminationMessage {
        message: format!("{}; {advice}", message.message),
        ..message
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

    use super::super::explain;
    use super::*;

    fn in_phase(phase: &str) -> RankStatus {
        let text = format!(r#"{{"phase":"{phase}","generation":2,"step":10}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn crash_before_join_is_named_with_advice() {
        let torch = "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK \
                     expected, but not set";
        let missing = "ModuleNotFoundError: No module named 'peft'";
        for (end, status, line, expected) in [
            (
                1,
                None,
                torch,
                "elastic.mode to Restart, or call roundhouse.join() instead of init_process_group",
            ),
            (
                1,
                None,
                missing,
                "'peft'; the script had not called roundhouse.join() yet",
            ),
            (
                2,
                Some(in_phase("Preparing")),
                "oh",
                "; the script had not called roundhouse.join() yet",
            ),
            (
                1,
                Some(in_phase("Training")),
                "oh",
                "last line of its log: oh",
            ),
            (64, None, "oh", "last line of its log: oh"),
        ] {
            let status = status.as_ref();
            let message = explain(End::Exited(end), None, status, Some(line), None);
            let found = before_join(message, status);
            assert!(found.message.ends_with(expected), "{found:?}");
        }
    }

    #[test]
    fn exit_code_0_of_a_script_requires_complete_training() {
        let (not_joined, early) = (Some("roundhouse.join(): add"), Some("at step 10, but"));
        for (end, status, expected) in [
            (End::Exited(0), None, not_joined),
            (End::Exited(0), Some(in_phase("Preparing")), not_joined),
            (End::Exited(0), Some(in_phase("Lobby")), early),
            (End::Exited(0), Some(in_phase("Training")), early),
            (End::Exited(0), Some(in_phase("Done")), None),
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
}
