//! Parses the Prometheus text that agents serve.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use serde::{Deserialize, Serialize};

/// One sample of a metric.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) name: String,
    /// Value of the label `rank`, if the sample has that label.
    pub(crate) rank: Option<u32>,
    pub(crate) value: f64,
}

/// The samples of a text. Other lines are skipped.
pub(crate) fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter_map(sample).collect()
}

/// The value of a metric of one rank.
pub(crate) fn of_rank(samples: &[Sample], name: &str, rank: u32) -> Option<f64> {
    let found = samples
        .iter()
        .find(|sample| sample.name == name && sample.rank == Some(rank));
    found.map(|sample| sample.value)
}

fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (head, value) = match line.find('}') {
        Some(end) => line.split_at(end + 1),
        None => line.split_at(line.find(' ')?),
    };
    let name = head.split('{').next()?;
    Some(Sample {
        name: name.to_owned(),
        rank: rank(head),
        value: value.split_whitespace().next()?.parse().ok()?,
    })
}

fn rank(head: &str) -> Option<u32> {
    let (_, rest) = head.split_once("{rank=\"")?;
    rest.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_found_by_name_and_rank() {
        let text = "# HELP roundhouse_train_step Committed steps\n# TYPE roundhouse_train_step gauge\n\
                    roundhouse_train_step{rank=\"0\"} 7\nroundhouse_train_step{rank=\"3\"} 8\n\
                    roundhouse_agent_processes 2\nbroken{\nx{rank=\"0\",section=\"a b\"} NaN\n";
        let samples = parse(text);
        assert_eq!(of_rank(&samples, "roundhouse_train_step", 3), Some(8.0));
        assert_eq!(of_rank(&samples, "roundhouse_train_step", 1), None);
        assert_eq!(samples.len(), 4, "{samples:?}");
        assert!(of_rank(&samples, "x", 0).unwrap().is_nan());
    }
}
