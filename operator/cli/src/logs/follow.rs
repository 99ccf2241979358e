//! Follows the logs of all pods at once, through restarts and replacements, until the job has
//! ended.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;

use super::line::split_time;
use super::reader::{Begin, Reader};
use super::{Line, Lines, Source, Target};

/// Capacity of the channel to the printer; streams pause while it is full.
const WAITING_LINES: usize = 1_024;
/// Lists in a row that may fail, for example while the API server restarts.
const MAX_FAILED_LISTS: u32 = 30;

/// A line of a pod (UID and text), or the end of its stream (UID).
enum News {
    Line(String, String),
    End(String),
}

/// Follows until the job has ended and all logs are read. `show` receives each line once; the lines
/// of one pod arrive in order. `note` receives warnings, for example about a log that is gone.
///
/// # Errors
/// The source fails to list the pods too often in a row, or `show` fails.
pub(crate) async fn follow(
    source: &impl Source,
    begin: Begin,
    poll_interval: Duration,
    mut show: impl FnMut(&Line) -> anyhow::Result<()>,
    mut note: impl FnMut(&str),
) -> anyhow::Result<()> {
    let (sender, mut news) = mpsc::channel(WAITING_LINES);
    let mut readers = HashMap::<String, Reader>::new();
    let mut known = HashMap::<String, Target>::new();
    let mut first = HashSet::<String>::new();
    let (mut is_first_list, mut failed_lists) = (true, 0);
    let mut poll = tokio::time::interval(poll_interval);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(news) = news.recv() => match news {
                News::Line(uid, raw) => {
                    let (Some(reader), Some(target)) = (readers.get_mut(&uid), known.get(&uid)) else {
                        continue;
                    };
                    let (at, _) = split_time(&raw);
                    if reader.seen.is_new(at, &raw) {
                        show(&Line::parse(&raw, &target.pod, target.worker))?;
                    }
                }
                News::End(uid) => {
                    if let Some(reader) = readers.get_mut(&uid) {
                        reader.ended(true);
                    }
                }
            },
            _ = poll.tick() => {
                let listing = match source.list().await {
                    Ok(listing) => listing,
                    Err(error) if failed_lists >= MAX_FAILED_LISTS => return Err(error),
                    Err(_) => {
                        failed_lists += 1;
                        continue;
                    }
                };
                failed_lists = 0;
                if is_first_list {
                    first.extend(listing.targets.iter().map(|target| target.uid.clone()));
                    is_first_list = false;
                }
                for target in &listing.targets {
                    known.insert(target.uid.clone(), target.clone());
                    let reader = readers.entry(target.uid.clone()).or_default();
                    let begin = first.contains(&target.uid).then_some(begin);
                    let Some(open) = reader.next(target, begin) else { continue };
                    if open.num_lost > 0 {
                        let (pod, lost) = (&target.pod, open.num_lost);
                        note(&format!("{pod}: the logs of {lost} restarts are lost: Kubernetes keeps only the last one"));
                    }
                    match source.open(&target.pod, open.part).await {
                        Ok(lines) => pump(lines, target.uid.clone(), sender.clone()),
                        Err(error) => {
                            if open.part.previous {
                                note(&format!("{}: cannot read its log before the restart: {error:#}", target.pod));
                            }
                            reader.ended(false);
                        }
                    }
                }
                let is_idle = readers.values().all(|reader| !reader.is_open());
                if listing.is_over && is_idle && news.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

/// Sends the lines of a stream to the task that prints, so that lines of several pods do not mix.
fn pump(mut lines: Lines, uid: String, sender: mpsc::Sender<News>) {
    tokio::spawn(async move {
        // The reader reopens a stream that breaks in the same way as one that ends.
        while let Some(Ok(line)) = lines.next().await {
            if sender.send(News::Line(uid.clone(), line)).await.is_err() {
                return;
            }
        }
        let _ = sender.send(News::End(uid)).await;
    });
}
