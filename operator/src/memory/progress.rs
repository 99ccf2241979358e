//! Reports of rank 0 of one job: how far training has come, and which generation has formed. The
//! operator polls its agent beside the reconciles; a poll without an answer changes nothing.
//!
//! It polls a job while the job trains, and less often if the job does not answer: the network
//! between the operator and the workers may be closed, or may be so for a while. The more jobs
//! train, the less often it polls each of them ([`pace`]). A new generation, an error of a
//! checkpoint and the last step wake the job at once.

use std::time::{Duration, Instant};

use roundhouse_api::TrainingJob;
use roundhouse_contract::Progress as Report;
use roundhouse_planner::{Pod, ProgressSample};

use self::pace::Pace;
use crate::job::{JobKey, JobName};
use crate::memory::JobMemories;

pub(crate) mod pace;

/// Polls without an answer after which a job is polled once a minute.
const MAX_SILENT: u32 = 20;
const SELDOM: Duration = Duration::from_mins(1);
/// How many polls about a new generation are frequent, however many jobs train. They show whether
/// it has formed; until then the planner reissues membership documents.
const MAX_QUICK: u32 = 4;
/// Two clocks are read when the age of the shown progress is computed.
const MARGIN: Duration = Duration::from_millis(10);

/// The reports of one job, while it trains.
#[derive(Debug, Default)]
pub struct Progress(Option<Polled>);

#[derive(Clone, Debug)]
struct Polled {
    address: String,
    last: Option<ProgressSample>,
    /// The newest generation that has formed, according to the reports.
    formed: Option<u64>,
    /// When the next poll is due.
    poll_at: Instant,
    /// Polls in a row without an answer.
    silent: u32,
    /// The newest generation, and how many frequent polls about it are left.
    newest: Option<u64>,
    quick: u32,
    /// When the job was last woken, and by which report.
    woken: Option<(Instant, Report)>,
    /// When the progress that its status shows was reported.
    shown: Option<Instant>,
}

impl Progress {
    #[must_use]
    pub fn last(&self) -> Option<ProgressSample> {
        self.0.as_ref().and_then(|polled| polled.last.clone())
    }

    /// The newest generation that has formed, according to the reports.
    #[must_use]
    pub fn formed(&self) -> Option<u64> {
        self.0.as_ref().and_then(|polled| polled.formed)
    }

    /// Polls the job from now on.
    pub fn follow<'a>(&mut self, job: &TrainingJob, pods: impl Iterator<Item = &'a Pod>) {
        if let Some(first) = first_rank(pods) {
            let now = Instant::now();
            let shown = job.status.as_ref().and_then(|it| it.progress.as_ref());
            let age = shown.map(|shown| jiff::Timestamp::now().duration_since(shown.updated_at.0));
            let shown = age.and_then(|age| now.checked_sub(age.try_into().ok()?));
            self.follow_at(first, shown, now);
        }
    }

    fn follow_at(
        &mut self,
        (address, newest): (String, u64),
        shown: Option<Instant>,
        now: Instant,
    ) {
        let known = self.0.take();
        let mut polled = match known {
            Some(known) if known.address == address => Polled { shown, ..known },
            known => Polled {
                address,
                poll_at: now,
                silent: 0,
                newest: None,
                quick: 0,
                last: known.as_ref().and_then(|known| known.last.clone()),
                formed: known.as_ref().and_then(|known| known.formed),
                woken: known.and_then(|known| known.woken),
                shown,
            },
        };
        if polled.newest < Some(newest) {
            (polled.newest, polled.quick) = (Some(newest), MAX_QUICK);
            polled.poll_at = polled.poll_at.min(now + pace::MIN_POLL);
        }
        self.0 = Some(polled);
    }

    /// Stops polling the job.
    pub fn forget(&mut self) {
        self.0 = None;
    }

    /// The address to poll, if a poll is due. It counts as polled from here on.
    fn poll(&mut self, pace: Pace, now: Instant) -> Option<String> {
        let polled = self.0.as_mut().filter(|it| it.poll_at <= now)?;
        // An answer resets the count.
        polled.silent = polled.silent.saturating_add(1);
        let is_silent = polled.silent >= MAX_SILENT;
        let is_quick = polled.quick > 0 && polled.formed < polled.newest;
        polled.quick = polled.quick.saturating_sub(1);
        polled.poll_at = match polled.due(pace) {
            _ if is_silent => now + SELDOM,
            _ if is_quick => now + pace::MIN_POLL,
            // A report that is polled later is old when the status shows it.
            Some(due) if due > now => due.min(now + pace.poll),
            _ => now + pace.poll,
        };
        Some(polled.address.clone())
    }

    /// Applies a report. Returns whether it wakes the job.
    fn reported(&mut self, report: Report, pace: Pace, now: Instant) -> bool {
        let at = jiff::Timestamp::now();
        let Some(polled) = &mut self.0 else {
            return false;
        };
        polled.has_answered(pace, now);
        polled.formed = polled.formed.max(Some(report.generation));
        polled.last = Some(ProgressSample {
            progress: report.clone(),
            at,
        });
        if let Some((_, before)) = &polled.woken {
            let is_time = polled.due(pace).is_none_or(|due| now >= due);
            if *before == report || !(is_time || is_urgent(before, &report)) {
                return false;
            }
        }
        polled.woken = Some((now, report));
        true
    }

    /// Applies the answer of a job without progress: the generation that has formed. Returns
    /// whether that wakes the job.
    fn formed_reported(&mut self, formed: u64, pace: Pace, now: Instant) -> bool {
        let Some(polled) = &mut self.0 else {
            return false;
        };
        polled.has_answered(pace, now);
        let is_news = polled.formed.is_none_or(|before| before < formed);
        polled.formed = polled.formed.max(Some(formed));
        is_news
    }
}

impl Polled {
    /// When the status is to show progress again; `None`: at once. The planner also decides by the
    /// age of the shown progress, so a reconcile with another cause counts as a turn.
    fn due(&self, pace: Pace) -> Option<Instant> {
        let woken = self.woken.as_ref().map(|(woken, _)| *woken);
        Some(self.shown.or(woken)? + pace.wake + MARGIN)
    }

    fn has_answered(&mut self, pace: Pace, now: Instant) {
        if self.silent >= MAX_SILENT {
            self.poll_at = now + pace.poll;
        }
        self.silent = 0;
    }
}

/// The polls of all jobs that train.
impl JobMemories {
    /// How often the status of a job shows progress that is not urgent.
    #[must_use]
    pub fn progress_interval(&self) -> Duration {
        self.lock().pace.wake
    }

    /// The jobs to poll now, and their addresses.
    pub(crate) fn progress_polls(&self, now: Instant) -> Vec<(JobKey, String)> {
        let mut state = self.lock();
        let jobs = state.jobs.all().values();
        let pace = Pace::of(jobs.filter(|memory| memory.progress.0.is_some()).count());
        state.pace = pace;
        let polls = state.jobs.iter_mut().filter_map(|(job, memory)| {
            let address = memory.progress.poll(pace, now)?;
            Some((job.clone(), address))
        });
        polls.collect()
    }

    /// Applies a report of rank 0. Returns the job to wake, if the report wakes it.
    pub(crate) fn progress_reported(
        &self,
        job: &JobKey,
        report: Report,
        now: Instant,
    ) -> Option<JobName> {
        let mut state = self.lock();
        let pace = state.pace;
        let memory = state.jobs.get_mut(job)?;
        let wakes = memory.progress.reported(report, pace, now);
        wakes.then(|| memory.name.clone())
    }

    /// Applies a report about which generation has formed. Returns the job to wake, if the operator
    /// did not know it.
    pub(crate) fn formed_reported(
        &self,
        job: &JobKey,
        formed: u64,
        now: Instant,
    ) -> Option<JobName> {
        let mut state = self.lock();
        let pace = state.pace;
        let memory = state.jobs.get_mut(job)?;
        let wakes = memory.progress.formed_reported(formed, pace, now);
        wakes.then(|| memory.name.clone())
    }
}

/// Whether a report must wake the job at once, because more than step numbers changed.
fn is_urgent(last: &Report, now: &Report) -> bool {
    let is_done = |report: &Report| report.total_steps > 0 && report.step >= report.total_steps;
    // The step of the copy in another pod does not matter.
    let held = |report: &Report| {
        let held = report.held_copy.as_ref();
        held.map(|held| (held.pair.clone(), held.generation))
    };
    last.generation != now.generation
        || last.checkpoint_error != now.checkpoint_error
        || held(last) != held(now)
        || is_done(last) != is_done(now)
}

/// Address of the worker with rank 0 of the newest generation, and that generation.
fn first_rank<'a>(pods: impl Iterator<Item = &'a Pod>) -> Option<(String, u64)> {
    let places = pods.filter(|pod| !pod.deleting);
    let places = places.filter_map(|pod| Some((pod.membership.as_ref()?, pod)));
    let first = places
        .filter(|(place, _)| place.node_rank == 0)
        .max_by_key(|(place, _)| place.generation);
    first.and_then(|(place, pod)| Some((pod.ip.clone()?, place.generation)))
}

#[cfg(test)]
mod tests;
