//! Follows the logs of all pods at once, through restarts and replacements, until the job has ended.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;

use super::line::split_time;
use super::reader::{Begin, Reader};
use super::{Line, Lines, Source, Target};

/// Lines that may wait to be shown; streams pause when there are more.
const WAITING_LINES: usize = 1_024;
/// Looks in a row that may fail before following ends, as when the API server restarts.
const MAX_FAILED_LOOKS: u32 = 30;

/// What happens in a stream.
enum News {
    Line(String, String),
    End(String),
}

/// Follows until the job has ended and its logs are read. `show` gets each line once; those of one pod come in their
/// order. `note` gets what is worth a word, such as a log that is gone.
///
/// # Errors
/// The pods cannot be listed for a while, or `show` fails.
pub(crate) async fn follow(
    source: &impl Source,
    begin: Begin,
    look_every: Duration,
    mut show: impl FnMut(&Line) -> anyhow::Result<()>,
    mut note: impl FnMut(&str),
) -> anyhow::Result<()> {
    let (sender, mut news) = mpsc::channel(WAITING_LINES);
    let mut readers = HashMap::<String, Reader>::new();
    let mut known = HashMap::<String, Target>::new();
    let mut first = HashSet::<String>::new();
    let (mut is_first_look, mut failed_looks) = (true, 0);
    let mut look = tokio::time::interval(look_every);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
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
            _ = look.tick() => {
                let listing = match source.list().await {
                    Ok(listing) => listing,
                    Err(error) if failed_looks >= MAX_FAILED_LOOKS => return Err(error),
                    Err(_) => {
                        failed_looks += 1;
                        continue;
                    }
                };
                failed_looks = 0;
                if is_first_look {
                    first.extend(listing.targets.iter().map(|target| target.uid.clone()));
                    is_first_look = false;
                }
                for target in &listing.targets {
                    known.insert(target.uid.clone(), target.clone());
                    let reader = readers.entry(target.uid.clone()).or_default();
                    let begin = first.contains(&target.uid).then_some(begin);
                    let Some(open) = reader.next(target, begin) else { continue };
                    if open.num_lost > 0 {
                        let (pod, lost) = (&target.pod, open.num_lost);
                        note(&format!("{pod}: the logs of {lost} restarts are gone: Kubernetes keeps the last one only"));
                    }
                    match source.open(&target.pod, open.part).await {
                        Ok(lines) => pump(lines, target.uid.clone(), sender.clone()),
                        Err(error) => {
                            if open.part.previous {
                                note(&format!("{}: its log before the restart is gone: {error:#}", target.pod));
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

/// Carries lines from a stream to the one place that shows them, so that they stay whole.
fn pump(mut lines: Lines, uid: String, sender: mpsc::Sender<News>) {
    tokio::spawn(async move {
        // A stream that breaks is opened again, as one that ends.
        while let Some(Ok(line)) = lines.next().await {
            if sender.send(News::Line(uid.clone(), line)).await.is_err() {
                return;
            }
        }
        let _ = sender.send(News::End(uid)).await;
    });
}
