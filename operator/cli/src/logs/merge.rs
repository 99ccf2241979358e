//! Reads the logs of all pods once and merges them by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use futures::StreamExt;
use jiff::Timestamp;

use super::line::split_time;
use super::reader::Begin;
use super::{Line, Lines, Part, Source, Target};

/// Reads the present logs. With `previous` it reads the containers before the last restart, and
/// skips pods without a restart. Lines of one pod keep their order; lines of several pods are
/// sorted by time.
///
/// # Errors
/// The source fails to list the pods, or `show` fails.
pub(crate) async fn merge(
    source: &impl Source,
    begin: Begin,
    previous: bool,
    mut show: impl FnMut(&Line) -> anyhow::Result<()>,
    mut note: impl FnMut(&str),
) -> anyhow::Result<()> {
    let part = Part {
        previous,
        follow: false,
        since: begin.since,
        tail: begin.tail,
    };
    let wanted = |target: &Target| target.has_started && (!previous || target.restarts > 0);
    let mut logs: Vec<(Target, Lines)> = Vec::new();
    for target in source.list().await?.targets.into_iter().filter(wanted) {
        match source.open(&target.pod, part).await {
            Ok(lines) => logs.push((target, lines)),
            Err(error) => note(&format!("{}: cannot read its log: {error:#}", target.pod)),
        }
    }
    let mut heads = BinaryHeap::new();
    for at in 0..logs.len() {
        push(&mut heads, &mut logs, at, None).await;
    }
    while let Some(Reverse((time, at, raw))) = heads.pop() {
        let (target, _) = &logs[at];
        show(&Line::parse(&raw, &target.pod, target.worker))?;
        push(&mut heads, &mut logs, at, time).await;
    }
    Ok(())
}

/// The next line of a log: its time, the index of the log, and the raw line.
type Head = Reverse<(Option<Timestamp>, usize, String)>;

/// Pushes the next line of a log. A line without a time gets the time of the line before it.
async fn push(
    heads: &mut BinaryHeap<Head>,
    logs: &mut [(Target, Lines)],
    at: usize,
    before: Option<Timestamp>,
) {
    if let Some(Ok(raw)) = logs[at].1.next().await {
        let time = split_time(&raw).0.max(before);
        heads.push(Reverse((time, at, raw)));
    }
}
