//! Describes a failure: worker, node, time and reason.

use std::fmt::Write;

use jiff::Timestamp;
use roundhouse_api::LastFailure;
use roundhouse_api::failures::INIT_CONTAINER_FAILED;
use roundhouse_contract::ExitCode;

use crate::observed::{InitContainer, Pod, Termination};
use crate::status::time;
use crate::verdict::Failure;

/// Longest reason and message, in bytes; the schema's bounds.
const MAX_REASON_BYTES: usize = 128;
const MAX_MESSAGE_BYTES: usize = 4_096;
/// Longest part of a log line that a message shows, in bytes.
const MAX_WORDS_BYTES: usize = 512;

/// The kubelet's reason for a container that it stopped because its postStart hook failed. The
/// container itself only receives SIGTERM.
pub(crate) const POST_START_HOOK_ERROR: &str = "PostStartHookError";

/// Builds the `lastFailure` of the status from a failure.
pub(super) fn describe(failure: &Failure<'_>, now: Timestamp) -> LastFailure {
    let Failure {
        pod,
        end,
        init,
        action: _,
        rule: _,
    } = failure;
    if let Some(init) = init {
        return describe_init(pod, init, failure.at().unwrap_or(now));
    }
    let words = end.and_then(|end| end.message.as_ref());
    let hook = pod.container.waiting.as_ref();
    let hook = hook.filter(|waiting| waiting.reason == POST_START_HOOK_ERROR);
    // Kubernetes knows why it evicted a pod or killed a container; the agent only sees a signal.
    let (reason, message) = match (&pod.failed, end, words) {
        (Some(failed), ..) if !failed.reason.is_empty() => {
            (failed.reason.clone(), first_line(&failed.message))
        }
        (_, Some(end), Some(words)) if end.reason == "OOMKilled" => {
            (end.reason.clone(), words.message.clone())
        }
        (_, Some(end), _) if has_left(end) && hook.is_some() => (
            POST_START_HOOK_ERROR.to_owned(),
            hook.map_or_else(String::new, |hook| hook.message.clone()),
        ),
        // An exit that the operator asked for is not a failure.
        (_, Some(end), Some(words)) if has_left(end) => (
            words.reason.as_str().to_owned(),
            format!(
                "{}; the operator did not ask it to: a postStart hook or a livenessProbe failed, or a person stopped the \
                 container; `kubectl describe pod {}` shows the kubelet's events",
                words.message, pod.name
            ),
        ),
        (_, _, Some(words)) => (words.reason.as_str().to_owned(), words.message.clone()),
        (_, Some(end), None) => (end.reason.clone(), String::new()),
        (_, None, None) => ("Failed".to_owned(), String::new()),
    };
    let (reason, message) = (
        cut(reason, MAX_REASON_BYTES),
        cut(message, MAX_MESSAGE_BYTES),
    );
    LastFailure {
        time: time(failure.at().unwrap_or(now)),
        worker: pod.name.clone(),
        rank: words.and_then(|words| words.rank),
        node: pod.node.clone(),
        reason,
        exit_code: end.map(|end| end.exit_code),
        step: words.map(|words| words.step),
        message,
    }
}

fn has_left(end: &Termination) -> bool {
    ExitCode::from_code(end.exit_code) == Some(ExitCode::Left)
}

/// Describes an init container that failed: its name, how it ended, and the last
/// line of its message.
pub(crate) fn describe_init(pod: &Pod, init: &InitContainer, at: Timestamp) -> LastFailure {
    let InitContainer {
        name,
        restarts: _,
        failure,
    } = init;
    let end = failure.as_ref();
    let said = end.and_then(|end| end.message.as_ref());
    let said = said.and_then(|said| last_line(&said.message));
    let killed = end.filter(|end| end.reason == "OOMKilled");
    let killed = killed.map(|_| "OOMKilled: it used more than its limits.memory".to_owned());
    let log = || format!("its log: `kubectl logs {} -c {name}`", pod.name);
    let words = killed.or(said).unwrap_or_else(log);
    LastFailure {
        time: time(at),
        worker: pod.name.clone(),
        rank: None,
        node: pod.node.clone(),
        reason: INIT_CONTAINER_FAILED.to_owned(),
        exit_code: end.map(|end| end.exit_code),
        step: None,
        message: cut(format!("init container {name}: {words}"), MAX_MESSAGE_BYTES),
    }
}

/// The last line of a log or a traceback says what happened.
fn last_line(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim).rev();
    let last = lines.find(|line| !line.is_empty());
    last.map(|line| cut(line.to_owned(), MAX_WORDS_BYTES))
}

/// Cuts a text to the schema's bound in bytes.
fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

fn first_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    lines
        .find(|line| !line.is_empty())
        .unwrap_or_default()
        .to_owned()
}

/// Formats a failure as one sentence for conditions and events.
pub(crate) fn sentence(failure: &LastFailure) -> String {
    let LastFailure {
        time: _,
        worker,
        rank,
        node,
        reason,
        exit_code,
        step,
        message,
    } = failure;
    let mut text = worker.clone();
    if let Some(rank) = rank {
        let _ = write!(text, " rank {rank}");
    }
    if let Some(node) = node {
        let _ = write!(text, " on {node}");
    }
    let _ = write!(text, ": {reason}");
    if let Some(code) = exit_code {
        let _ = write!(text, " (exit code {code})");
    }
    if let Some(step) = step.filter(|step| *step > 0) {
        let _ = write!(text, " after step {step}");
    }
    if !message.is_empty() {
        let _ = write!(text, ": {message}");
    }
    text
}
