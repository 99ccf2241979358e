//! Pods that were made lately. If one of them is missing soon after, the job itself may be gone: then the garbage collector
//! deletes whatever is made for it. So the API server is asked before the same pod is made once more.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use roundhouse_api::TrainingJob;
use roundhouse_contract::names;
use roundhouse_planner::Action;

use crate::controller::context::Context;
use crate::controller::error::Error;
use crate::job::JobKey;
use crate::runtime::api::calls::call;
use crate::runtime::api::metadata::OfKind;

/// So long after the last one was made the pods of a job are forgotten.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Names of pods, by job.
#[derive(Debug, Default)]
pub struct RecentPods(Mutex<HashMap<JobKey, Made>>);

#[derive(Debug)]
struct Made {
    names: HashSet<String>,
    last: Instant,
}

impl RecentPods {
    /// A pod was made.
    pub fn insert(&self, job: &JobKey, name: String) {
        let mut all = self.lock();
        all.retain(|_, made| made.last.elapsed() < FORGOTTEN);
        let now = Instant::now();
        let made = all.entry(job.clone()).or_insert_with(|| Made {
            names: HashSet::new(),
            last: now,
        });
        made.names.insert(name);
        made.last = now;
    }

    /// Whether one of these was made lately.
    fn has_any(&self, job: &JobKey, mut pods: impl Iterator<Item = String>) -> bool {
        let all = self.lock();
        let made = all.get(job);
        made.is_some_and(|made| {
            made.last.elapsed() < FORGOTTEN && pods.any(|name| made.names.contains(&name))
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Made>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the actions make a pod once more, and the job is not there any more.
///
/// # Errors
/// The API server refused, or did not answer.
pub(crate) async fn job_is_gone(
    context: &Context,
    key: &JobKey,
    job: &TrainingJob,
    actions: &[Action],
) -> Result<bool, Error> {
    let name = job.name_any();
    let pods = actions.iter().filter_map(|action| match action {
        Action::CreateWorker { index, attempt, .. } => {
            Some(names::worker_pod(&name, *index, *attempt))
        }
        _ => None,
    });
    if !context.recent_pods.has_any(key, pods) {
        return Ok(false);
    }
    let jobs = OfKind::namespaced::<TrainingJob>(&context.client, &key.namespace);
    match call(|| jobs.get(&name)).await {
        Ok(live) => Ok(live.uid != job.uid() || live.deletion_timestamp.is_some()),
        Err(error) if error.code() == Some(404) => Ok(true),
        Err(error) => Err(Error::Confirm(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_remembered_for_a_while_after_the_last_one_of_its_job_was_made() {
        let (made, job) = (RecentPods::default(), JobKey::new("ml", "uid"));
        let other = JobKey::new("ml", "other");
        let has = |job, name: &str| made.has_any(job, [name.to_owned()].into_iter());
        made.insert(&job, "digits-worker-0-0".to_owned());
        assert!(has(&job, "digits-worker-0-0"));
        assert!(!has(&job, "digits-worker-0-1") && !has(&other, "digits-worker-0-0"));
        let long_ago = Instant::now().checked_sub(FORGOTTEN).unwrap();
        made.lock().get_mut(&job).unwrap().last = long_ago;
        assert!(!has(&job, "digits-worker-0-0"));
        made.insert(&other, "digits-worker-0-0".to_owned());
        assert_eq!(made.lock().len(), 1);
    }
}
