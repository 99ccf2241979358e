//! Applies edits of the job's file while the job runs, as `kubectl apply` does on a cluster.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use roundhouse_api::TrainingJob;
use roundhouse_api::fields::{Edit, FIELDS};
use roundhouse_planner::ValidatedJob;

use super::launch_plan::LaunchPlan;
use super::manifest::Manifest;
use super::{Options, capacity, launch_plan, validated};
use crate::screen::Screen;

const INTERVAL: Duration = Duration::from_millis(100);

/// Watches the job's file for edits.
#[derive(Debug)]
pub(crate) struct Edits {
    options: Options,
    written_at: Option<SystemTime>,
    checked_at: Instant,
}

/// The job after an edit, and the launch plan of workers that start from now on.
#[derive(Debug)]
pub(crate) struct Edited {
    pub(crate) job: TrainingJob,
    pub(crate) valid: ValidatedJob,
    pub(crate) launch_plan: LaunchPlan,
}

impl Edits {
    pub(crate) fn of(options: &Options) -> Self {
        Self {
            options: options.clone(),
            written_at: written_at(&options.file),
            checked_at: Instant::now(),
        }
    }

    /// The edited job, if the file has changed its spec. An invalid file changes nothing; the
    /// screen shows the error.
    pub(crate) fn poll(
        &mut self,
        current: &TrainingJob,
        launch_plan: &LaunchPlan,
        screen: &Screen,
    ) -> Option<Edited> {
        if self.checked_at.elapsed() < INTERVAL {
            return None;
        }
        self.checked_at = Instant::now();
        let written_at = written_at(&self.options.file);
        if written_at.is_none() || written_at == self.written_at {
            return None;
        }
        self.written_at = written_at;
        match self.wanted(current, launch_plan) {
            Ok(edited) => (edited.job.spec != current.spec).then_some(edited),
            Err(error) => {
                screen.note(&format!("  the edit of the file is ignored: {error:#}"));
                None
            }
        }
    }

    fn wanted(&self, current: &TrainingJob, launch_plan: &LaunchPlan) -> anyhow::Result<Edited> {
        let Options { file, name, .. } = &self.options;
        let mut wanted = Manifest::read(file, name.as_deref())?.job;
        launch_plan::keep_state(&mut wanted, &self.options);
        let job = merge(current, wanted)?;
        let valid = validated(&job, &self.options.gpus)?;
        capacity::check(&valid)?;
        let launch_plan = launch_plan::after_edit(&self.options, launch_plan, &valid)?;
        Ok(Edited {
            job,
            valid,
            launch_plan,
        })
    }
}

fn written_at(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|it| it.modified()).ok()
}

/// The current job with the wanted spec, if only mutable fields differ.
fn merge(current: &TrainingJob, wanted: TrainingJob) -> anyhow::Result<TrainingJob> {
    let mut refused = FIELDS
        .iter()
        .filter(|field| !field.allows(&current.spec, &wanted.spec));
    if let Some(field) = refused.next() {
        let advice = match field.edit {
            Edit::Anytime | Edit::WhileSuspended => {
                "while the job is not suspended: undo this edit, save the file with suspend: true, and edit it again \
                 when all workers have left"
            }
            Edit::Never => "while it runs: stop this run, and start another one",
        };
        bail!("spec.{} is immutable {advice}", field.path());
    }
    let mut job = current.clone();
    job.spec = wanted.spec;
    job.metadata.generation = Some(job.metadata.generation.unwrap_or(1) + 1);
    Ok(job)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(suspend: bool, path: &str, value: &Value) -> TrainingJob {
        let mut spec = json!({
            "suspend": suspend,
            "workers": {"replicas": 2},
            "trainer": {"model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 10, "epochs": 1},
        });
        let mut at = &mut spec;
        for key in path.split('.').filter(|key| !key.is_empty()) {
            at = &mut at[key];
        }
        if !value.is_null() {
            *at = value.clone();
        }
        serde_json::from_value(json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "digits"}, "spec": spec,
        }))
        .unwrap()
    }

    fn merged(suspend: bool, path: &str, value: &Value) -> Result<TrainingJob, String> {
        let current = job(suspend, "", &Value::Null);
        let wanted = job(suspend, path, value);
        merge(&current, wanted).map_err(|error| error.to_string())
    }

    #[test]
    fn edit_of_an_immutable_field_is_refused() {
        for (path, value) in [
            ("trainer.epochs", json!(2)),
            ("workers.procsPerWorker", json!(2)),
            ("networkPolicy", json!("None")),
            ("successPolicy", json!("RankZero")),
            ("scheduling.gang", json!("Volcano")),
            ("elastic.mode", json!("Restart")),
        ] {
            for suspend in [false, true] {
                let error = merged(suspend, path, &value).unwrap_err();
                assert!(
                    error.contains("is immutable while it runs"),
                    "{path}: {error}"
                );
            }
        }
    }

    #[test]
    fn launch_fields_change_only_while_suspended() {
        let rule = json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]);
        for (path, value) in [
            ("failurePolicy.rules", rule),
            ("stallTimeoutSeconds", json!(600)),
            ("elastic.peerFailureWindowSeconds", json!(9)),
            ("elastic.leaveGraceSeconds", json!(9)),
            (
                "checkpoint",
                json!({"volume": {"hostPath": {"path": "/x"}}}),
            ),
            ("workers.template", json!({"spec": {}})),
            ("workers.sharded", json!(false)),
        ] {
            let error = merged(false, path, &value).unwrap_err();
            let words = format!("spec.{path} is immutable while the job is not suspended");
            assert!(error.starts_with(&words), "{error}");
            let changed = merged(true, path, &value).unwrap();
            assert_eq!(changed.metadata.generation, Some(2), "{path}");
        }
    }

    #[test]
    fn replicas_change_at_any_time() {
        let changed = merged(false, "workers.replicas", &json!(1)).unwrap();
        assert_eq!(changed.spec.workers.replicas, 1);
    }
}
