//! Progress of training, from rank 0 to the agent, the operator and the user. The schema of the
//! progress in the job's status leaves out checkpoints, which have their own field there, and the
//! straggler, which only the operator uses.

use serde::{Deserialize, Serialize};

use crate::{BestCheckpoint, HeldCopy, Repeat, counter};

/// Progress of a job as its rank 0 sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Generation that committed the last step.
    #[serde(deserialize_with = "counter::read")]
    pub generation: u64,
    /// Number of ranks that committed it.
    pub world_size: u32,
    /// Committed optimizer steps since the job's first.
    #[serde(deserialize_with = "counter::read")]
    pub step: u64,
    /// Steps of the whole job.
    #[serde(deserialize_with = "counter::read")]
    pub total_steps: u64,
    /// Epoch of the next step, from 0.
    #[serde(deserialize_with = "counter::read")]
    pub epoch: u64,
    /// Mean training loss over the last steps. Absent before the first of them, for example after a
    /// resume, and if it is not a finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Committed steps whose loss or gradient was not finite, so that they did not change the
    /// weights.
    #[serde(
        default,
        skip_serializing_if = "counter::is_zero",
        deserialize_with = "counter::read"
    )]
    pub skipped_steps: u64,
    /// Committed steps of this job that were lost with all processes that had their state, and
    /// repeated. The number never decreases.
    #[serde(
        default,
        skip_serializing_if = "counter::is_zero",
        deserialize_with = "counter::read"
    )]
    pub repeated_steps: u64,
    /// The newest of the repeated steps, and the state that training continued from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_repeat: Option<Repeat>,
    /// Samples per second over all processes.
    pub samples_per_second: f64,
    /// Accuracy on the test split, 0 to 1, once evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_accuracy: Option<f64>,
    /// Mean loss on the test split, once evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
    /// Perplexity on the test split, once evaluated, of a model that reads tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_perplexity: Option<f64>,
    /// Committed steps that the newest checkpoint contains; absent while there is none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "counter::read_some"
    )]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_step: Option<u64>,
    /// Time at which that checkpoint was complete (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_at: Option<String>,
    /// Committed steps that the newest local copy of rank 0's worker contains; absent while there
    /// is none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "counter::read_some"
    )]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub local_step: Option<u64>,
    /// Why the last local copy was not written, in a sentence; absent if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub local_error: Option<String>,
    /// The copy that the holder of rank 0's worker has; absent if there is no holder, if it does
    /// not answer, or if it has no whole copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub held_copy: Option<HeldCopy>,
    /// The best checkpoint, if it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// Why the last checkpoint failed, in a sentence; absent if it did not fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_error: Option<String>,
    /// The worker for which all others wait, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub straggler: Option<Straggler>,
}

impl Progress {
    /// Takes over the repeated steps of an earlier progress if that has more: a rank that has just
    /// become rank 0 does not know them yet.
    #[must_use]
    pub fn with_repeats_of(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) if before.repeated_steps > self.repeated_steps => Self {
                repeated_steps: before.repeated_steps,
                last_repeat: before.last_repeat,
                ..self
            },
            Some(_) | None => self,
        }
    }
}

/// An agent's answer to a poll of the progress. It names the job, since addresses
/// of pods are reused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressReport<T> {
    /// UID of the job; absent if the agent does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_uid: Option<String>,
    #[serde(flatten)]
    pub report: T,
}

impl<T> ProgressReport<T> {
    /// The report, unless it belongs to another job.
    #[must_use]
    pub fn of(self, job_uid: &str) -> Option<T> {
        let is_other = self.job_uid.is_some_and(|uid| uid != job_uid);
        (!is_other).then_some(self.report)
    }
}

/// An agent's report while there is no progress: no step of the job is committed, or
/// its script reports none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formed {
    /// The generation of the agent's processes; 0 in the lobby.
    #[serde(deserialize_with = "counter::read")]
    pub formed: u64,
}

/// A worker that is much slower than the others of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Straggler {
    /// Rank of the worker in the generation.
    pub node_rank: u32,
    /// Ratio of its time for its own part of a step to the time of the others.
    pub factor: f64,
}

/// Progress that a script writes: the file [`crate::environment::script::PROGRESS_FILE`], which the
/// script replaces as often as it likes. Only the step is required.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScriptProgress {
    /// Steps done since the job's start, over all restarts.
    #[serde(deserialize_with = "counter::read")]
    pub step: u64,
    /// Steps of the whole job; 0 if unknown.
    #[serde(default, deserialize_with = "counter::read")]
    pub total_steps: u64,
    /// Epoch of the next step, from 0.
    #[serde(default, deserialize_with = "counter::read")]
    pub epoch: u64,
    /// Loss of the last steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Samples per second over all processes.
    #[serde(default)]
    pub samples_per_second: f64,
}

impl ScriptProgress {
    /// Converts it to the progress of a generation.
    #[must_use]
    pub fn within(self, generation: u64, world_size: u32) -> Progress {
        let Self {
            step,
            total_steps,
            epoch,
            loss,
            samples_per_second,
        } = self;
        Progress {
            generation,
            world_size,
            step,
            total_steps,
            epoch,
            loss,
            samples_per_second,
            ..Progress::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_another_job_is_ignored() {
        let read = |text: &str| serde_json::from_str::<ProgressReport<Progress>>(text).unwrap();
        let rest = r#""generation":2,"worldSize":4,"step":9,"totalSteps":18446744073709551615,"epoch":0,"samplesPerSecond":1.5}"#;
        let progress = read(&format!("{{{rest}")).report;
        assert_eq!((progress.step, progress.samples_per_second), (9, 1.5));
        for (uid, expected) in [
            ("", true),
            (r#""jobUid":"a","#, true),
            (r#""jobUid":"b","#, false),
        ] {
            let report = read(&format!("{{{uid}{rest}"));
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(read(&text), report);
            let expected = expected.then(|| progress.clone());
            assert_eq!(report.of("a"), expected, "{uid}");
        }
    }

    #[test]
    fn progress_round_trips_without_unknown_fields() {
        let progress = Progress {
            step: 3,
            total_steps: 9,
            loss: Some(0.5),
            ..Progress::default()
        };
        let text = serde_json::to_string(&progress).unwrap();
        assert!(!text.contains("eval"), "{text}");
        assert!(!text.contains("checkpoint"), "{text}");
        assert!(!text.contains("straggler"), "{text}");
        assert!(!text.contains("skipped"), "{text}");
        assert!(!text.contains("epeat"), "{text}");
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
        let with_straggler = Progress {
            straggler: Some(Straggler {
                node_rank: 2,
                factor: 2.3,
            }),
            ..progress
        };
        let text = serde_json::to_string(&with_straggler).unwrap();
        assert!(text.contains(r#"{"nodeRank":2,"factor":2.3}"#), "{text}");
        assert_eq!(
            serde_json::from_str::<Progress>(&text).unwrap(),
            with_straggler
        );
    }

    #[test]
    fn excessive_counters_are_limited() {
        let most = i64::MAX.cast_unsigned();
        let text = format!(r#"{{"step": {}, "totalSteps": {}}}"#, u64::MAX, most + 1);
        let report: ScriptProgress = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (report.step, report.total_steps, report.epoch),
            (most, most, 0)
        );
        let mut progress = serde_json::to_value(report.within(1, 1)).unwrap();
        progress["step"] = u64::MAX.into();
        progress["checkpointStep"] = u64::MAX.into();
        let progress: Progress = serde_json::from_value(progress).unwrap();
        let read = (progress.step, progress.checkpoint_step);
        assert_eq!(read, (most, Some(most)));
    }

    #[test]
    fn script_progress_needs_only_a_step() {
        let report: ScriptProgress = serde_json::from_str(r#"{"step": 7}"#).unwrap();
        let progress = report.within(3, 2);
        assert_eq!((progress.generation, progress.step), (3, 7));
        assert_eq!(progress.total_steps, 0);
    }
}
