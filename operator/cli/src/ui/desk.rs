//! Answers questions of the page, and asks the origin as seldom as it can: what was read is kept for a moment, several
//! open pages share it, and reading takes a tenth of the time at most, however large a job is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::document;
use super::origin::Origin;
use super::story;
use crate::facts::Facts;
use crate::plot::Moment;
use crate::view::list;

/// How long what was read is kept at least.
const FRESH: Duration = Duration::from_secs(2);
/// And how much longer than it took to read.
const SHARE: u32 = 10;
/// And how long at most.
const OLD: Duration = Duration::from_secs(30);
/// Jobs of which something is kept.
const MAX_KEPT: usize = 32;

/// A job, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

/// Which log of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LogOf {
    /// Pod.
    pub(super) pod: String,
    /// Place of the process on the worker.
    pub(super) process: u32,
    /// That of the container before the last restart.
    pub(super) previous: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The question makes no sense.
    Wrong(String),
    /// There is no such thing.
    Missing(String),
    /// The origin does not answer, or refuses to.
    Unreachable(String),
}

impl Trouble {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::Missing(_) => StatusCode::NOT_FOUND,
            Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Wrong(words) | Self::Missing(words) | Self::Unreachable(words)) = self;
        out.write_str(words)
    }
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Unreachable(format!("{error:#}"))
    }
}

type Found<T> = Result<T, Trouble>;
/// What is kept under a name, each behind a lock: while one asks, others wait for the same answer.
type Shelf<K, T> = RefCell<HashMap<K, Rc<Mutex<T>>>>;

/// What was read, and until when it counts as new.
#[derive(Debug)]
struct Kept<T> {
    found: Option<Found<T>>,
    until: Option<Instant>,
    /// How long a page shall wait before it asks again.
    pause: Duration,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            found: None,
            until: None,
            pause: FRESH,
        }
    }
}

impl<T: Clone> Kept<T> {
    /// What is kept if it is new enough, else what is read now.
    async fn get(&mut self, fresh: Duration, read: impl Future<Output = Found<T>>) -> Found<T> {
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

/// How long something is kept that took so long to read.
fn pause(fresh: Duration, took: Duration) -> Duration {
    (took * SHARE).clamp(fresh, OLD.max(fresh))
}

/// What a job has told over time.
#[derive(Debug, Default)]
struct Told {
    /// UID of the job: a later one of the same name is another one.
    uid: Option<String>,
    /// Its generation at the last look.
    generation: u64,
    moments: Vec<Moment>,
    kept: Kept<Rc<Vec<Moment>>>,
}

/// Answers questions.
#[derive(Debug)]
pub(crate) struct Desk {
    origin: Origin,
    fresh: Duration,
    jobs: Mutex<Kept<Value>>,
    facts: Shelf<Job, Kept<Rc<Facts>>>,
    told: Shelf<Job, Told>,
    logs: Shelf<(Job, LogOf), Kept<Value>>,
}

impl Desk {
    /// Asks this origin.
    pub(crate) fn new(origin: Origin) -> Self {
        Self {
            origin,
            fresh: FRESH,
            jobs: Mutex::default(),
            facts: Shelf::default(),
            told: Shelf::default(),
            logs: Shelf::default(),
        }
    }

    /// All jobs.
    pub(super) async fn jobs(&self) -> Found<Value> {
        let mut kept = self.jobs.lock().await;
        let read = async {
            let jobs = list::lines(&self.origin.jobs().await?);
            Ok(document::jobs(&self.origin, &jobs, Timestamp::now()))
        };
        let found = kept.get(self.fresh, read).await;
        with_pause(found, kept.pause)
    }

    /// All that is known of a job now.
    pub(super) async fn job(&self, job: &Job) -> Found<Value> {
        let (facts, pause) = self.facts(job).await;
        let document = facts.map(|facts| document::job(&self.origin, &facts));
        with_pause(document, pause)
    }

    /// What has become of a job: curves, generations and incidents.
    pub(super) async fn story(&self, job: &Job) -> Found<Value> {
        let (facts, _) = self.facts(job).await;
        let facts = facts?;
        let told = shelf(&self.told, job);
        let mut told = told.lock().await;
        let Told {
            uid,
            generation,
            moments,
            kept,
        } = &mut *told;
        let is_another = *uid != facts.job.metadata.uid;
        if is_another {
            uid.clone_from(&facts.job.metadata.uid);
            moments.clear();
            *kept = Kept::default();
        }
        let read = async {
            self.origin.extend(moments, &facts, *generation).await?;
            *generation = facts.generation();
            Ok(Rc::new(moments.clone()))
        };
        let found = kept.get(self.fresh * 2, read).await;
        let document = found.map(|moments| story::of(&facts, &moments));
        with_pause(document, kept.pause)
    }

    /// The last lines of a log.
    pub(super) async fn log(&self, job: &Job, log: &LogOf) -> Found<Value> {
        let (facts, _) = self.facts(job).await;
        let facts = facts?;
        let kept = shelf(&self.logs, &(job.clone(), log.clone()));
        let mut kept = kept.lock().await;
        let found = kept.get(self.fresh, self.origin.log(&facts, log)).await;
        with_pause(found, kept.pause)
    }

    async fn facts(&self, job: &Job) -> (Found<Rc<Facts>>, Duration) {
        let kept = shelf(&self.facts, job);
        let mut kept = kept.lock().await;
        let read = async { Box::pin(self.origin.facts(job)).await.map(Rc::new) };
        let found = kept.get(self.fresh, read).await;
        (found, kept.pause)
    }
}

/// What is kept under a name. When there is too much, all of it goes that nobody uses now.
fn shelf<K: Clone + Eq + Hash, T: Default>(shelf: &Shelf<K, T>, key: &K) -> Rc<Mutex<T>> {
    let mut shelf = shelf.borrow_mut();
    if shelf.len() >= MAX_KEPT && !shelf.contains_key(key) {
        shelf.retain(|_, kept| Rc::strong_count(kept) > 1);
    }
    Rc::clone(shelf.entry(key.clone()).or_default())
}

fn with_pause(found: Found<Value>, pause: Duration) -> Found<Value> {
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
    async fn what_was_read_is_kept_and_errors_are_too() {
        let num_reads = Cell::new(0);
        let read = async || {
            num_reads.set(num_reads.get() + 1);
            Ok(num_reads.get())
        };
        let mut kept = Kept::default();
        assert_eq!(kept.get(HOUR, read()).await, Ok(1));
        assert_eq!(kept.get(HOUR, read()).await, Ok(1));
        let mut kept = Kept::default();
        assert_eq!(kept.get(Duration::ZERO, read()).await, Ok(2));
        kept.until = None;
        assert_eq!(kept.get(Duration::ZERO, read()).await, Ok(3));
        let mut kept = Kept::default();
        let wrong = async || Err(Trouble::Unreachable("refused".to_owned()));
        assert!(kept.get(HOUR, wrong()).await.is_err());
        assert!(kept.get(HOUR, read()).await.is_err());
        assert_eq!(num_reads.get(), 3);
    }

    #[test]
    fn reading_takes_a_tenth_of_the_time_at_most() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(seconds(2), Duration::from_millis(50)), seconds(2));
        assert_eq!(pause(seconds(2), seconds(1)), seconds(10));
        assert_eq!(pause(seconds(2), seconds(15)), seconds(30));
    }

    #[test]
    fn little_is_kept_of_many_jobs() {
        let all = Shelf::<usize, u32>::default();
        let used = shelf(&all, &0);
        for key in 1..10 * MAX_KEPT {
            shelf(&all, &key);
            assert!(all.borrow().len() <= MAX_KEPT);
        }
        assert!(Rc::ptr_eq(&used, &shelf(&all, &0)), "it is in use");
    }
}
