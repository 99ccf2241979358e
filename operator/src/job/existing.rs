//! A value for each job that exists, as the watch of the jobs reports it.

use std::collections::{HashMap, HashSet};

use kube::runtime::watcher::Event;
use roundhouse_planner::JobIdentity;

use super::JobKey;

/// The values by job. A job has one from the moment the watch reports it until the watch reports
/// that it is deleted, or lists all jobs again without it: the operator may have missed the
/// deletion.
#[derive(Debug)]
pub struct ExistingJobs<T> {
    values: HashMap<JobKey, T>,
    /// The jobs of a list in progress.
    listed: HashSet<JobKey>,
}

impl<T> Default for ExistingJobs<T> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            listed: HashSet::new(),
        }
    }
}

impl<T> ExistingJobs<T> {
    /// Applies an event of the watch. `new` makes the value of a job that had none.
    pub fn apply(&mut self, event: &Event<JobIdentity>, new: impl FnOnce(&JobIdentity) -> T) {
        let add = |job: &JobIdentity| {
            let value = self.values.entry(JobKey::from(job));
            value.or_insert_with(|| new(job));
        };
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(job) => {
                add(job);
                self.listed.insert(JobKey::from(job));
            }
            Event::InitDone => {
                self.values.retain(|job, _| self.listed.contains(job));
                self.listed = HashSet::new();
            }
            Event::Apply(job) => add(job),
            Event::Delete(job) => {
                self.values.remove(&JobKey::from(job));
            }
        }
    }

    /// The value of a job, if the job exists.
    pub fn get_mut(&mut self, job: &JobKey) -> Option<&mut T> {
        self.values.get_mut(job)
    }

    /// The values of all jobs.
    #[must_use]
    pub const fn all(&self) -> &HashMap<JobKey, T> {
        &self.values
    }

    /// The values of all jobs, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&JobKey, &mut T)> {
        self.values.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn job(uid: u8) -> JobIdentity {
        JobIdentity {
            namespace: "ml".to_owned(),
            name: "digits".to_owned(),
            uid: uid.to_string(),
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Apply(u8),
        Delete(u8),
        /// The watch breaks, and its next list has these jobs.
        List(Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let uid = || 0..4_u8;
        prop_oneof![
            uid().prop_map(Step::Apply),
            uid().prop_map(Step::Delete),
            vec(uid(), 0..4).prop_map(Step::List),
        ]
    }

    proptest! {
        #[test]
        fn exactly_the_reported_jobs_have_a_value(steps in vec(step(), 0..30)) {
            let (mut jobs, mut expected) = (ExistingJobs::default(), HashSet::new());
            for step in steps {
                let events: Vec<Event<JobIdentity>> = match step {
                    Step::Apply(uid) => {
                        expected.insert(uid);
                        vec![Event::Apply(job(uid))]
                    }
                    Step::Delete(uid) => {
                        expected.remove(&uid);
                        vec![Event::Delete(job(uid))]
                    }
                    Step::List(uids) => {
                        expected = uids.iter().copied().collect();
                        let listed = uids.into_iter().map(|uid| Event::InitApply(job(uid)));
                        [Event::Init].into_iter().chain(listed).chain([Event::InitDone]).collect()
                    }
                };
                for event in events {
                    jobs.apply(&event, |_| ());
                }
                let found: HashSet<&str> = jobs.all().keys().map(|job| &*job.uid).collect();
                let expected: HashSet<String> = expected.iter().map(u8::to_string).collect();
                prop_assert_eq!(found, expected.iter().map(String::as_str).collect());
                prop_assert!(jobs.listed.is_empty());
            }
        }
    }

    #[test]
    fn a_value_survives_a_list_that_has_its_job() {
        let mut jobs = ExistingJobs::default();
        jobs.apply(&Event::Apply(job(1)), |_| 7);
        for event in [Event::Init, Event::InitApply(job(1)), Event::InitDone] {
            jobs.apply(&event, |_| 8);
        }
        assert_eq!(jobs.get_mut(&JobKey::from(&job(1))), Some(&mut 7));
        jobs.apply(&Event::Apply(job(2)), |_| 8);
        let recreated = jobs.get_mut(&JobKey::from(&job(2)));
        assert_eq!(
            recreated,
            Some(&mut 8),
            "another UID, although the name is the same"
        );
    }
}
