//! Reads what rank 0 has told so far from the logs of a job's pods.

use super::Moment;
use crate::logs::merge::merge;
use crate::logs::{Begin, Line, Source};

/// All moments of a job that its logs still have, by time. `note` gets what is worth a word, such as a log that is gone.
///
/// # Errors
/// The pods cannot be listed.
pub(crate) async fn read(source: &impl Source, note: impl Fn(&str)) -> anyhow::Result<Vec<Moment>> {
    let mut moments = Vec::new();
    // What was told before the last restart comes first; pods without one have no such log.
    for previous in [true, false] {
        let keep = |line: &Line| {
            moments.extend(Moment::of(line));
            Ok(())
        };
        merge(source, Begin::default(), previous, keep, &note).await?;
    }
    moments.sort_by_key(|moment| moment.at);
    Ok(moments)
}

/// Adds what was told later than all that is known.
///
/// # Errors
/// The pods cannot be listed.
pub(crate) async fn extend(moments: &mut Vec<Moment>, source: &impl Source) -> anyhow::Result<()> {
    let newest = moments.iter().filter_map(|moment| moment.at).max();
    let begin = Begin {
        since: newest,
        tail: None,
    };
    let mut news = Vec::new();
    for previous in [true, false] {
        let keep = |line: &Line| {
            // A log is given from a whole second on, so its first lines come again.
            if line.at > newest {
                news.extend(Moment::of(line));
            }
            Ok(())
        };
        merge(source, begin, previous, keep, |_| {}).await?;
    }
    news.sort_by_key(|moment| moment.at);
    moments.append(&mut news);
    Ok(())
}
