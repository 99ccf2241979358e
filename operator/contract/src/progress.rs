//! How far training has come: what rank 0 tells the agent, the agent the operator, the operator
//! the user. What it says about checkpoints has a place of its own in the job's status, and the
//! straggler is for the operator alone, so the schema of the progress there leaves them out.

use serde::{Deserialize, Serialize};

use crate::{BestCheckpoint, Repeat, counter};

/// Progress of a job as its rank 0 sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Generation that committed the last step.
    #[serde(deserialize_with = "counter::read")]
    pub generation: u64,
    /// Ranks that committed it.
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
    /// Mean training loss over the last steps; absent before the first of them, as after a resume, and if it is
    /// not a finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Committed steps whose loss or gradient was not finite, so that they did not change the weights.
    #[serde(
        default,
        skip_serializing_if = "counter::is_zero",
        deserialize_with = "counter::read"
    )]
    pub skipped_steps: u64,
    /// Committed steps of this job that were lost with all processes that had their state, and repeated. It never falls.
    #[serde(
        default,
        skip_serializing_if = "counter::is_zero",
        deserialize_with = "counter::read"
    )]
    pub repeated_steps: u64,
    /// The newest of the repeated steps, and the state that training continued from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_repeat: Option<Repeat>,
    /// Samples per second over the whole world.
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
    /// Committed steps that the newest checkpoint holds; absent while there is none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "counter::read_some"
    )]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_step: Option<u64>,
    /// When it was committed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_at: Option<String>,
    /// The best checkpoint, if it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// Why the last attempt failed, in a sentence; absent when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_error: Option<String>,
    /// The worker that all others wait for, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub straggler: Option<Straggler>,
}

impl Progress {
    /// This progress with the repeated steps of an earlier one if that has more: a rank that has just become rank 0 does not
    /// know them yet.
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

/// What an agent answers when it is asked for the progress. It says whose that is, since addresses of pods are used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told<T> {
    /// UID of the job; absent if the agent does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_uid: Option<String>,
    /// What it tells.
    #[serde(flatten)]
    pub told: T,
}

impl<T> Told<T> {
    /// What it tells, unless that is of another job.
    #[must_use]
    pub fn of(self, job_uid: &str) -> Option<T> {
        let is_other = self.job_uid.is_some_and(|told| told != job_uid);
        (!is_other).then_some(self.told)
    }
}

/// What an agent tells while there is no progress: no step of the job is committed, or its script tells none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formed {
    /// The generation that its processes are in; 0 in the lobby.
    #[serde(deserialize_with = "counter::read")]
    pub formed: u64,
}

/// A worker that is much slower than the others of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Straggler {
    /// Its place in the generation.
    pub node_rank: u32,
    /// How many times as long as the others it takes for its own part of a step.
    pub factor: f64,
}

/// How far a script is, in its own words: the file [`crate::environment::script::PROGRESS_FILE`],
/// replaced as often as the script likes. Only the step must be given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScriptProgress {
    /// Steps done since the job's first, over all restarts.
    #[serde(deserialize_with = "counter::read")]
    pub step: u64,
    /// Steps of the whole job; 0: unknown.
    #[serde(default, deserialize_with = "counter::read")]
    pub total_steps: u64,
    /// Epoch of the next step, from 0.
    #[serde(default, deserialize_with = "counter::read")]
    pub epoch: u64,
    /// Loss of the last steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Samples per second over the whole world.
    #[serde(default)]
    pub samples_per_second: f64,
}

impl ScriptProgress {
    /// The same as progress of a generation.
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
    fn progress_of_another_job_at_the_same_address_is_not_taken() {
        let read = |text: &str| serde_json::from_str::<Told<Progress>>(text).unwrap();
        let rest = r#""generation":2,"worldSize":4,"step":9,"totalSteps":18446744073709551615,"epoch":0,"samplesPerSecond":1.5}"#;
        let progress = read(&format!("{{{rest}")).told;
        assert_eq!((progress.step, progress.samples_per_second), (9, 1.5));
        for (uid, expected) in [
            ("", true),
            (r#""jobUid":"a","#, true),
            (r#""jobUid":"b","#, false),
        ] {
            let told = read(&format!("{{{uid}{rest}"));
            let text = serde_json::to_string(&told).unwrap();
            assert_eq!(read(&text), told);
            let expected = expected.then(|| progress.clone());
            assert_eq!(told.of("a"), expected, "{uid}");
        }
    }

    #[test]
    fn progress_reads_back_and_leaves_out_what_is_unknown() {
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
    fn counters_that_no_status_can_show_are_read_as_the_largest_that_it_can() {
        let most = i64::MAX.cast_unsigned();
        let text = format!(r#"{{"step": {}, "totalSteps": {}}}"#, u64::MAX, most + 1);
        let told: ScriptProgress = serde_json::from_str(&text).unwrap();
        assert_eq!((told.step, told.total_steps, told.epoch), (most, most, 0));
        let mut progress = serde_json::to_value(told.within(1, 1)).unwrap();
        progress["step"] = u64::MAX.into();
        progress["checkpointStep"] = u64::MAX.into();
        let progress: Progress = serde_json::from_value(progress).unwrap();
        let read = (progress.step, progress.checkpoint_step);
        assert_eq!(read, (most, Some(most)));
    }

    #[test]
    fn a_script_may_say_nothing_but_its_step() {
        let told: ScriptProgress = serde_json::from_str(r#"{"step": 7}"#).unwrap();
        let progress = told.within(3, 2);
        assert_eq!((progress.generation, progress.step), (3, 7));
        assert_eq!(progress.total_steps, 0);
    }
}
