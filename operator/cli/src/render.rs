//! Renders a job as one line of text. Pure.

use std::fmt::Write;

use roundhouse_api::TrainingJob;
use roundhouse_contract::Progress;
use serde::Serialize;

use crate::out::plain;
use crate::view::{seconds_left, span_of, speed_text};

/// The state of a job that trains.
const TRAINING: &str = "Training";

/// The fields of a job that `watch` and `run` show.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct View {
    pub(crate) state: String,
    pub(crate) message: String,
    pub(crate) workers: String,
    pub(crate) generation: u64,
    pub(crate) world_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Progress>,
    /// Remaining time until the last step, such as `3m10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left: Option<String>,
}

impl View {
    /// From the job's status, and from an agent's progress `fresh` unless the status is newer.
    pub(crate) fn of(job: &TrainingJob, fresh: Option<Progress>) -> Self {
        let Some(status) = &job.status else {
            let state = "not seen by the operator yet".to_owned();
            return Self {
                state,
                ..Self::default()
            };
        };
        let front = status.front();
        let membership = status.membership.as_ref();
        let stored = status
            .progress
            .as_ref()
            .map(|stored| stored.progress.clone());
        let progress = match (fresh, stored) {
            (Some(fresh), Some(stored)) if stored.step > fresh.step => Some(stored),
            (Some(fresh), _) => Some(fresh),
            (None, stored) => stored,
        };
        let left = progress.as_ref().and_then(|it| seconds_left(job, it));
        Self {
            left: left.map(span_of),
            state: plain(status.state()),
            message: front.map_or_else(String::new, |condition| plain(&condition.message)),
            workers: status
                .workers
                .as_ref()
                .map_or_else(String::new, |w| w.summary.clone()),
            generation: membership.map_or(0, |membership| membership.generation),
            world_size: membership.map_or(0, |membership| membership.world_size),
            progress,
        }
    }

    /// The last line about a job that has ended.
    pub(crate) fn end(&self) -> String {
        let Self { state, message, .. } = self;
        match &self.progress {
            Some(_) => format!("{state}  {}  {message}", self.numbers()),
            None => format!("{state}  {message}"),
        }
    }

    /// The state, and the workers that train or the reason why none does.
    pub(crate) fn head(&self) -> String {
        let Self {
            state,
            message,
            workers,
            generation,
            world_size,
            progress: _,
            left: _,
        } = self;
        if state == TRAINING {
            format!("{state}  workers {workers}  generation {generation}  world size {world_size}")
        } else {
            format!("{state}  {message}")
        }
    }

    /// Loss, throughput, evaluation and remaining time.
    pub(crate) fn numbers(&self) -> String {
        let Some(progress) = &self.progress else {
            return String::new();
        };
        let loss = progress.loss.map_or_else(|| "-".to_owned(), loss_text);
        let mut text = format!("loss {loss}");
        // Before the first step of a generation, the speed is that of the generation before.
        // Some scripts report progress without a generation (0).
        let is_of_newest = [0, self.generation].contains(&progress.generation);
        if self.state == TRAINING && is_of_newest {
            let _ = write!(text, "  {}", speed_text(progress.samples_per_second));
        }
        if let Some(accuracy) = progress.eval_accuracy {
            text += &accuracy_text(accuracy);
        }
        if let Some(perplexity) = progress.eval_perplexity {
            let _ = write!(text, "  test perplexity {perplexity:.2}");
        }
        if let Some(left) = &self.left {
            let _ = write!(text, "  {left} left");
        }
        text
    }

    /// Head, step and numbers in one line.
    pub(crate) fn line(&self) -> String {
        match &self.progress {
            None => self.head(),
            Some(progress) => {
                let (step, total) = (progress.step, progress.total_steps);
                format!("{}  step {step}/{total}  {}", self.head(), self.numbers())
            }
        }
    }
}

/// A loss with four decimals, or in scientific notation from 1e6 on.
pub(crate) fn loss_text(loss: f64) -> String {
    if loss.abs() < 1e6 {
        format!("{loss:.4}")
    } else {
        format!("{loss:.3e}")
    }
}

fn accuracy_text(accuracy: f64) -> String {
    format!("  test accuracy {:.1} %", accuracy * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(status: &serde_json::Value) -> TrainingJob {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "digits"},
            "spec": {"workers": {"replicas": 2}, "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 1, "epochs": 1}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn huge_loss_is_written_with_an_exponent() {
        assert_eq!(loss_text(0.25), "0.2500");
        assert_eq!(loss_text(1_605_514_766_480_172_200_000.0), "1.606e21");
    }

    #[test]
    fn job_before_its_first_generation_shows_the_reason() {
        let status = serde_json::json!({"conditions": [{
            "type": "Running", "status": "False", "reason": "Unschedulable",
            "message": "0 of 2\u{1b}[31m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        assert_eq!(
            View::of(&job(&status), None).line(),
            "Unschedulable  0 of 2 [31m"
        );
    }

    #[test]
    fn resumed_job_has_no_loss_before_its_first_step() {
        let resumed = Progress {
            step: 480,
            total_steps: 1_000,
            ..Progress::default()
        };
        let view = View {
            progress: Some(resumed),
            ..View::default()
        };
        assert_eq!(view.numbers(), "loss -");
        let waits = View {
            state: TRAINING.to_owned(),
            generation: 2,
            progress: Some(Progress {
                generation: 1,
                samples_per_second: 2_901.0,
                ..Progress::default()
            }),
            ..View::default()
        };
        assert_eq!(
            waits.numbers(),
            "loss -",
            "its speed is that of the generation before"
        );
    }

    #[test]
    fn unknown_speed_is_shown_as_a_dash() {
        let view = View {
            state: TRAINING.to_owned(),
            progress: Some(Progress {
                loss: Some(0.25),
                ..Progress::default()
            }),
            ..View::default()
        };
        assert_eq!(view.numbers(), "loss 0.2500  - samples/s");
    }

    #[test]
    fn training_job_shows_its_numbers() {
        let status = serde_json::json!({
            "conditions": [{"type": "Running", "status": "True", "reason": "Training",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "membership": {"generation": 1, "worldSize": 4, "nodes": 2, "members": ""},
            "workers": {"wanted": 2, "ready": 2, "active": 2, "summary": "2/2"}});
        let fresh = Progress {
            step: 5,
            total_steps: 10,
            loss: Some(0.25),
            samples_per_second: 99.6,
            eval_accuracy: Some(0.961),
            eval_perplexity: Some(7.125),
            ..Progress::default()
        };
        assert_eq!(
            View::of(&job(&status), Some(fresh)).line(),
            "Training  workers 2/2  generation 1  world size 4  step 5/10  loss 0.2500  100 samples/s  test accuracy 96.1 %  test perplexity 7.12  0s left"
        );
    }
}
