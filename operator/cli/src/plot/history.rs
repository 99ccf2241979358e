//! Reads the reports of rank 0 from the logs of a job's pods.

use super::Moment;
use crate::logs::merge::merge;
use crate::logs::{Begin, Line, Source};

/// All moments in the present logs of a job, by time. `note` receives warnings, for example about a
/// log that is gone.
///
/// # Errors
/// The source fails to list the pods.
pub(crate) async fn read(source: &impl Source, note: impl Fn(&str)) -> anyhow::Result<Vec<Moment>> {
    let mut moments = Vec::new();
    // Read the logs from before the last restart first; pods without a restart have none.
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

/// Appends moments that are newer than all known ones.
///
/// # Errors
/// The source fails to list the pods.
pub(crate) async fn extend(moments: &mut Vec<Moment>, source: &impl Source) -> anyhow::Result<()> {
    let newest = moments.iter().filter_map(|moment| moment.at).max();
    let begin = Begin {
        since: newest,
        tail: None,
    };
    let mut news = Vec::new();
    for previous in [true, false] {
        let keep = |line: &Line| {
            // The API server rounds `since` down to a whole second, so some lines arrive again.
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
