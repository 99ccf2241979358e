//! Answers the page's queries from a cache. All open pages share one answer, and reads from the
//! source take at most a tenth of the time, however large the job is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::document;
use super::history;
use super::model::{JobName, LogRequest, QueryError};
use super::source::DataSource;
use crate::facts::Facts;
use crate::plot::Moment;
use crate::view::list;

/// Shortest lifetime of an answer.
const FRESH: Duration = Duration::from_secs(2);
/// An answer lives this many times as long as its read took, within the limits.
const SHARE: u32 = 10;
/// Longest lifetime of an answer.
const OLD: Duration = Duration::from_secs(30);
/// Most entries of one kind; above it, entries that no query uses are dropped.
const MAX_KEPT: usize = 32;

type Answer<T> = Result<T, QueryError>;
/// Cached values by key. Each has a lock: while one query reads, other queries wait for its answer.
type Entries<K, T> = RefCell<HashMap<K, Rc<Mutex<T>>>>;

/// An answer, and how long it stays valid.
#[derive(Debug)]
struct Cached<T> {
    found: Option<Answer<T>>,
    until: Option<Instant>,
    /// Time until a page should ask again.
    pause: Duration,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self {
            found: None,
            until: None,
            pause: FRESH,
        }
    }
}

impl<T: Clone> Cached<T> {
    /// Returns the cached answer while it is valid, and otherwise reads a new one.
    async fn get(&mut self, fresh: Duration, read: impl Future<Output = Answer<T>>) -> Answer<T> {
        let is_new = self.until.is_some_and(|until| Instant::now() < until);
        if let Some(found) = self.found.as_ref().filter(|_| is_new) {
            return found.clone();
        }
        let begun = Instant::now();
        let found = read.await;
        self.pause = pause(fresh, begun.elapsed());
        self.until = Some(Instant::now() + self.pause);
        self.found = Some(found.clone());
        found
    }
}

/// Lifetime of an answer whose read took the time `took`.
fn pause(fresh: Duration, took: Duration) -> Duration {
    (took * SHARE).clamp(fresh, OLD.max(fresh))
}

/// The reports of one job over time.
#[derive(Debug, Default)]
struct History {
    /// UID of the job; a later job with the same name starts with an empty history.
    uid: Option<String>,
    /// The job's generation at the last read.
    generation: u64,
    moments: Vec<Moment>,
    cached: Cached<Rc<Vec<Moment>>>,
}

/// Answers the page's queries.
#[derive(Debug)]
pub(crate) struct QueryCache {
    source: DataSource,
    fresh: Duration,
    jobs: Mutex<Cached<Value>>,
    facts: Entries<JobName, Cached<Rc<Facts>>>,
    histories: Entries<JobName, History>,
    logs: Entries<(JobName, LogRequest), Cached<Value>>,
}

impl QueryCache {
    pub(crate) fn new(source: DataSource) -> Self {
        Self {
            source,
            fresh: FRESH,
            jobs: Mutex::default(),
            facts: Entries::default(),
            histories: Entries::default(),
            logs: Entries::default(),
        }
    }

    pub(super) async fn jobs(&self) -> Answer<Value> {
        let mut cached = self.jobs.lock().await;
        let read = async {
            let jobs = list::lines(&self.source.jobs().await?);
            Ok(document::jobs(&self.source, &jobs, Timestamp::now()))
        };
        let found = cached.get(self.fresh, read).await;
        with_pause(found, cached.pause)
    }

    /// The present state of a job.
    pub(super) async fn job(&self, job: &JobName) -> Answer<Value> {
        let (facts, pause) = self.facts(job).await;
        let document = facts.map(|facts| document::job(&self.source, &facts));
        with_pause(document, pause)
    }

    /// Curves, generations and incidents of a job.
    pub(super) async fn history(&self, job: &JobName) -> Answer<Value> {
        let (facts, _) = self.facts(job).await;
        let facts = facts?;
        let known = entry(&self.histories, job);
        let mut known = known.lock().await;
        let History {
            uid,
            generation,
            moments,
            cached,
        } = &mut *known;
        let is_another = *uid != facts.job.metadata.uid;
        if is_another {
            uid.clone_from(&facts.job.metadata.uid);
            moments.clear();
            *cached = Cached::default();
        }
        let read = async {
            self.source.extend(moments, &facts, *generation).await?;
            *generation = facts.generation();
            Ok(Rc::new(moments.clone()))
        };
        let found = cached.get(self.fresh * 2, read).await;
        let document = found.map(|moments| history::of(&facts, &moments));
        with_pause(document, cached.pause)
    }

    /// The last lines of a log.
    pub(super) async fn log(&self, job: &JobName, log: &LogRequest) -> Answer<Value> {
        let (facts, _) = self.facts(job).await;
        let facts = facts?;
        let cached = entry(&self.logs, &(job.clone(), log.clone()));
        let mut cached = cached.lock().await;
        let found = cached.get(self.fresh, self.source.log(&facts, log)).await;
        with_pause(found, cached.pause)
    }

    async fn facts(&self, job: &JobName) -> (Answer<Rc<Facts>>, Duration) {
        let cached = entry(&self.facts, job);
        let mut cached = cached.lock().await;
        let read = async { Box::pin(self.source.facts(job)).await.map(Rc::new) };
        let found = cached.get(self.fresh, read).await;
        (found, cached.pause)
    }
}

/// The entry of a key. At `MAX_KEPT` entries, those that no query uses now are dropped first.
fn entry<K: Clone + Eq + Hash, T: Default>(entries: &Entries<K, T>, key: &K) -> Rc<Mutex<T>> {
    let mut entries = entries.borrow_mut();
    if entries.len() >= MAX_KEPT && !entries.contains_key(key) {
        entries.retain(|_, cached| Rc::strong_count(cached) > 1);
    }
    Rc::clone(entries.entry(key.clone()).or_default())
}

fn with_pause(found: Answer<Value>, pause: Duration) -> Answer<Value> {
    let mut document = found?;
    document["pauseSeconds"] = json!(pause.as_secs_f64());
    Ok(document)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn answers_and_errors_are_cached() {
        let num_reads = Cell::new(0);
        let read = async || {
            num_reads.set(num_reads.get() + 1);
            Ok(num_reads.get())
        };
        let mut cached = Cached::default();
        assert_eq!(cached.get(HOUR, read()).await, Ok(1));
        assert_eq!(cached.get(HOUR, read()).await, Ok(1));
        let mut cached = Cached::default();
        assert_eq!(cached.get(Duration::ZERO, read()).await, Ok(2));
        cached.until = None;
        assert_eq!(cached.get(Duration::ZERO, read()).await, Ok(3));
        let mut cached = Cached::default();
        let wrong = async || Err(QueryError::Unreachable("refused".to_owned()));
        assert!(cached.get(HOUR, wrong()).await.is_err());
        assert!(cached.get(HOUR, read()).await.is_err());
        assert_eq!(num_reads.get(), 3);
    }

    #[test]
    fn reads_take_at_most_a_tenth_of_the_time() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(seconds(2), Duration::from_millis(50)), seconds(2));
        assert_eq!(pause(seconds(2), seconds(1)), seconds(10));
        assert_eq!(pause(seconds(2), seconds(15)), seconds(30));
    }

    #[test]
    fn cache_is_bounded_for_many_jobs() {
        let all = Entries::<usize, u32>::default();
        let used = entry(&all, &0);
        for key in 1..10 * MAX_KEPT {
            entry(&all, &key);
            assert!(all.borrow().len() <= MAX_KEPT);
        }
        assert!(Rc::ptr_eq(&used, &entry(&all, &0)), "it is in use");
    }
}
