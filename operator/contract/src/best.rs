//! Chooses the best checkpoint by a metric of evaluations.

use serde::{Deserialize, Serialize};

use crate::counter;
use crate::trainer::ModelName;

crate::closed_enum! {
    /// The metric of an evaluation that decides which checkpoint is the best one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub enum BestMetric {
        /// Mean loss: the smallest is the best.
        Loss,
        /// Fraction of samples whose highest score is their label's: the largest is the best.
        Top1,
        /// Fraction of samples whose label has one of the five highest scores: the largest is the
        /// best.
        Top5,
        /// Perplexity of a language model: the smallest is the best.
        Perplexity,
    }
}

impl BestMetric {
    /// The name as in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Top1 => "top1",
            Self::Top5 => "top5",
            Self::Perplexity => "perplexity",
        }
    }

    /// What to change if an evaluation of the model does not compute this metric; `None` if it may.
    /// The metrics of a user's own model are unknown.
    #[must_use]
    pub fn refusal(self, model: ModelName) -> Option<String> {
        let others = match (self, model) {
            (
                Self::Top1 | Self::Top5,
                ModelName::Gpt2 | ModelName::Bert | ModelName::Llama | ModelName::Switch,
            ) => "perplexity or loss",
            (Self::Perplexity, model) if model.reads_images() => "top1, top5 or loss",
            (Self::Loss | Self::Top1 | Self::Top5 | Self::Perplexity, _) => return None,
        };
        let model = model.as_str();
        Some(format!(
            "an evaluation of a {model} has no {self}: use {others}"
        ))
    }

    /// Whether one value is better than another. A value that is not a number is never better.
    #[must_use]
    pub fn is_better(self, value: f64, than: f64) -> bool {
        match self {
            Self::Loss | Self::Perplexity => value < than,
            Self::Top1 | Self::Top5 => value > than,
        }
    }
}

impl std::str::FromStr for BestMetric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|metric| metric.as_str() == text);
        found.ok_or_else(|| "give loss, top1, top5 or perplexity".to_owned())
    }
}

impl std::fmt::Display for BestMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The best checkpoint so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BestCheckpoint {
    /// Committed steps that the checkpoint contains.
    #[serde(deserialize_with = "counter::read")]
    pub step: u64,
    /// The metric that decides.
    pub metric: BestMetric,
    /// Value of the metric when the state of this step was evaluated.
    pub value: f64,
}

impl BestCheckpoint {
    /// Whether it replaces the previous best checkpoint. Of equal ones the first stays, and after a
    /// change of the metric any checkpoint replaces the previous one.
    #[must_use]
    pub fn replaces(&self, before: Option<&Self>) -> bool {
        before
            .filter(|before| before.metric == self.metric)
            .is_none_or(|before| self.metric.is_better(self.value, before.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_round_trip() {
        for metric in BestMetric::ALL {
            assert_eq!(metric.as_str().parse(), Ok(metric));
            let text = serde_json::to_string(&metric).unwrap();
            assert_eq!(text, format!("\"{metric}\""));
        }
        assert!("accuracy".parse::<BestMetric>().is_err());
    }

    #[test]
    fn metric_that_the_model_lacks_is_refused() {
        use BestMetric::{Loss, Perplexity, Top1, Top5};
        use ModelName::{Bert, Cnn, Custom, Gpt2, Linear, Llama, Mlp, Resnet18, Resnet50, Switch};
        for (models, refused) in [
            (vec![Gpt2, Bert, Llama, Switch], vec![Top1, Top5]),
            (vec![Linear, Mlp, Cnn, Resnet18, Resnet50], vec![Perplexity]),
            (vec![Custom], vec![]),
        ] {
            for model in models {
                let found = BestMetric::ALL.into_iter();
                let found: Vec<_> = found.filter(|it| it.refusal(model).is_some()).collect();
                assert_eq!(found, refused, "{model:?}");
                assert!(Loss.refusal(model).is_none(), "{model:?}");
            }
        }
    }

    #[test]
    fn only_a_better_checkpoint_replaces_the_best() {
        use BestMetric::{Loss, Perplexity, Top1, Top5};
        let best = |metric, value| BestCheckpoint {
            step: 1,
            metric,
            value,
        };
        for (metric, value, before, expected) in [
            (Loss, 0.5, 0.6, true),
            (Loss, 0.6, 0.6, false),
            (Loss, f64::NAN, 0.6, false),
            (Perplexity, 30.0, 20.0, false),
            (Top1, 0.9, 0.8, true),
            (Top5, 0.9, 0.9, false),
            (Top5, 0.8, 0.9, false),
        ] {
            let replaces = best(metric, value).replaces(Some(&best(metric, before)));
            assert_eq!(replaces, expected, "{metric}: {value} after {before}");
        }
        assert!(best(Loss, 9.0).replaces(None));
        assert!(best(Top1, 0.1).replaces(Some(&best(Loss, 0.1))));
    }
}
