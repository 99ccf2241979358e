//! How far jobs have come: asked of rank 0's agent over HTTP. Best effort, beside the reconciles.
//!
//! A job that trains is asked for as long as it exists. One that does not answer is asked less often: the network between
//! the operator and the workers may be closed, or may be so for a while. The more jobs train, the less often each is asked
//! ([`pace`]). What is urgent wakes its job as soon as it is told: a new generation, trouble with checkpoints, the last step.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_api::TrainingJob;
use roundhouse_contract::Progress as Told;
use roundhouse_planner::{Pod, ProgressSample};

use crate::job::{JobKey, JobName};
use crate::watch::cache::OfJob;

mod pace;
pub(crate) mod pull;

use pace::Pace;

/// Polls without an answer after which a job is asked once a minute.
const MAX_SILENT: u32 = 20;
const SELDOM: Duration = Duration::from_mins(1);
/// Polls, as often as of few jobs, about whether a generation that was just raised has formed. Documents are written again
/// where nobody tells so.
const MAX_QUICK: u32 = 4;
/// Two clocks are read when the age of what is shown is computed.
const MARGIN: Duration = Duration::from_millis(10);

/// Jobs that train, and what each last told.
#[derive(Debug, Default)]
pub struct Progress {
    jobs: Mutex<HashMap<JobKey, Followed>>,
}

#[derive(Clone, Debug)]
struct Followed {
    address: String,
    wake: JobName,
    last: Option<ProgressSample>,
    /// The newest generation that has formed, as far as was told.
    formed: Option<u64>,
    /// When it is asked next.
    ask_at: Instant,
    /// Polls in a row without an answer.
    silent: u32,
    /// The newest generation, and quick questions that are left about it.
    newest: Option<u64>,
    quick: u32,
    /// When it was woken last, and for what.
    woken: Option<(Instant, Told)>,
    /// When it told what its status shows.
    shown: Option<Instant>,
}

impl Progress {
    /// What a job last told.
    #[must_use]
    pub fn of(&self, job: &JobKey) -> Option<ProgressSample> {
        self.lock()
            .get(job)
            .and_then(|followed| followed.last.clone())
    }

    /// The newest generation that has formed, as far as the job has told.
    #[must_use]
    pub fn formed(&self, job: &JobKey) -> Option<u64> {
        self.lock().get(job).and_then(|followed| followed.formed)
    }

    /// How often a job's status shows progress that is not urgent.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Pace::of(self.lock().len()).wake
    }

    /// Asks the job from now on.
    pub fn follow(&self, key: &JobKey, job: &TrainingJob, pods: &OfJob<Pod>) {
        if let Some(first) = first_rank(pods) {
            let (wake, now) = (JobName::of(&job.metadata), Instant::now());
            let shown = job.status.as_ref().and_then(|it| it.progress.as_ref());
            let age = shown.map(|shown| jiff::Timestamp::now().duration_since(shown.updated_at.0));
            let shown = age.and_then(|age| now.checked_sub(age.try_into().ok()?));
            self.follow_at(key, wake, first, shown, now);
        }
    }

    fn follow_at(
        &self,
        key: &JobKey,
        wake: JobName,
        (address, newest): (String, u64),
        shown: Option<Instant>,
        now: Instant,
    ) {
        let mut jobs = self.lock();
        let known = jobs.remove(key);
        let mut followed = match known {
            Some(known) if known.address == address => Followed {
                wake,
                shown,
                ..known
            },
            known => Followed {
                address,
                wake,
                ask_at: now,
                silent: 0,
                newest: None,
                quick: 0,
                last: known.as_ref().and_then(|known| known.last.clone()),
                formed: known.as_ref().and_then(|known| known.formed),
                woken: known.and_then(|known| known.woken),
                shown,
            },
        };
        if followed.newest < Some(newest) {
            (followed.newest, followed.quick) = (Some(newest), MAX_QUICK);
            followed.ask_at = followed.ask_at.min(now + pace::MIN_QUESTION);
        }
        jobs.insert(key.clone(), followed);
    }

    /// Asks the job no more.
    pub fn forget(&self, job: &JobKey) {
        self.lock().remove(job);
    }

    /// Whom to ask now. Jobs that do not exist any more are forgotten.
    fn questions(
        &self,
        exists: impl Fn(&JobKey, &JobName) -> bool,
        now: Instant,
    ) -> Vec<(JobKey, String)> {
        let mut jobs = self.lock();
        jobs.retain(|key, followed| exists(key, &followed.wake));
        let pace = Pace::of(jobs.len());
        let mut asked = Vec::new();
        for (job, followed) in jobs.iter_mut().filter(|(_, it)| it.ask_at <= now) {
            asked.push((job.clone(), followed.address.clone()));
            // Until there is an answer.
            followed.silent = followed.silent.saturating_add(1);
            let is_silent = followed.silent >= MAX_SILENT;
            let is_quick = followed.quick > 0 && followed.formed < followed.newest;
            followed.quick = followed.quick.saturating_sub(1);
            followed.ask_at = match followed.due(pace) {
                _ if is_silent => now + SELDOM,
                _ if is_quick => now + pace::MIN_QUESTION,
                // It is old when it is to be shown, if it is asked later.
                Some(due) if due > now => due.min(now + pace.question),
                _ => now + pace.question,
            };
        }
        asked
    }

    /// Takes in an answer; returns the job to wake, if it is to be looked at now.
    fn hear(&self, job: &JobKey, progress: Told, now: Instant) -> Option<JobName> {
        let at = jiff::Timestamp::now();
        let mut jobs = self.lock();
        let pace = Pace::of(jobs.len());
        let followed = jobs.get_mut(job)?;
        followed.has_answered(pace, now);
        followed.formed = followed.formed.max(Some(progress.generation));
        let sample = ProgressSample {
            progress: progress.clone(),
            at,
        };
        followed.last = Some(sample);
        if let Some((_, before)) = &followed.woken {
            let is_time = followed.due(pace).is_none_or(|due| now >= due);
            if *before == progress || !(is_time || is_urgent(before, &progress)) {
                return None;
            }
        }
        followed.woken = Some((now, progress));
        Some(followed.wake.clone())
    }

    /// Takes in that a job has no progress to tell, and which generation has formed; returns the job to wake, if that is news.
    fn hear_formed(&self, job: &JobKey, formed: u64, now: Instant) -> Option<JobName> {
        let mut jobs = self.lock();
        let pace = Pace::of(jobs.len());
        let followed = jobs.get_mut(job)?;
        followed.has_answered(pace, now);
        let is_news = followed.formed.is_none_or(|before| before < formed);
        followed.formed = followed.formed.max(Some(formed));
        is_news.then(|| followed.wake.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Followed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Followed {
    /// When its status is to show it again; `None`: at once. The planner decides the same by the age of what the status shows, so
    /// a look that was for something else does not cost a turn.
    fn due(&self, pace: Pace) -> Option<Instant> {
        let woken = self.woken.as_ref().map(|(woken, _)| *woken);
        Some(self.shown.or(woken)? + pace.wake + MARGIN)
    }

    fn has_answered(&mut self, pace: Pace, now: Instant) {
        if self.silent >= MAX_SILENT {
            self.ask_at = now + pace.question;
        }
        self.silent = 0;
    }
}

/// Whether more than numbers have changed.
fn is_urgent(last: &Told, now: &Told) -> bool {
    let is_done = |told: &Told| told.total_steps > 0 && told.step >= told.total_steps;
    last.generation != now.generation
        || last.checkpoint_error != now.checkpoint_error
        || is_done(last) != is_done(now)
}

/// Address of the worker with rank 0 of the newest generation, and that generation.
fn first_rank(pods: &OfJob<Pod>) -> Option<(String, u64)> {
    let places = pods.values().filter(|entry| !entry.value.deleting);
    let places = places.filter_map(|entry| Some((entry.value.membership.as_ref()?, entry)));
    let first = places
        .filter(|(place, _)| place.node_rank == 0)
        .max_by_key(|(place, _)| place.generation);
    first.and_then(|(place, entry)| Some((entry.value.ip.clone()?, place.generation)))
}

#[cfg(test)]
mod tests;
