//! A failure in words: who, where, when and why.

use std::fmt::Write;

use jiff::Timestamp;
use roundhouse_api::LastFailure;

use super::policy::Failure;
use crate::told::status::time;

/// Longest reason and message, in bytes; the schema's bounds.
const MAX_REASON_BYTES: usize = 128;
const MAX_MESSAGE_BYTES: usize = 4_096;

/// What is known of a failure.
pub(super) fn describe(failure: &Failure<'_>, now: Timestamp) -> LastFailure {
    let Failure {
        pod,
        end,
        action: _,
        rule: _,
    } = failure;
    let words = end.and_then(|end| end.message.as_ref());
    // Kubernetes knows why it took a pod away, and what killed a container; the agent only sees a signal.
    let (reason, message) = match (&pod.failed, end, words) {
        (Some(failed), ..) if !failed.reason.is_empty() => {
            (failed.reason.clone(), first_line(&failed.message))
        }
        (_, Some(end), Some(words)) if end.reason == "OOMKilled" => {
            (end.reason.clone(), words.message.clone())
        }
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

/// The schema's bound keeps a status from growing; what is longer is cut.
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

/// The failure in a sentence.
pub(super) fn sentence(failure: &LastFailure) -> String {
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
