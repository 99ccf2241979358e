//! Reads one post. The names of metrics are those of Transformers 5.24, whose callback posts when
//! training begins, at most every 5 s after a step, and when training ends:
//!
//! - begin: 0 percent, `total_steps`;
//! - step: up to 99 percent, `current_step`, `total_steps`, `current_epoch`, and the newest value
//!   of each number that the loop has logged, such as `loss`;
//! - end: 100 percent, and these numbers with the means of the whole training, but no step.
//!
//! Values of metrics are strings, and Python writes `nan` and `inf` among them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::script_progress::{count, number, without_nan};

/// A post, as far as it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) step: Option<u64>,
    pub(super) total_steps: Option<u64>,
    pub(super) epoch: Option<u64>,
    pub(super) loss: Option<f64>,
    pub(super) samples_per_second: Option<f64>,
    /// Whether the training loop has ended: a post of 100 percent without a step.
    pub(super) is_complete: bool,
}

/// Parses the body of a post.
///
/// # Errors
/// Says what is wrong: it is not JSON, a part has another type, or the step is missing.
pub(super) fn read(body: &[u8]) -> Result<Report, String> {
    let text = std::str::from_utf8(body).map_err(|error| format!("not UTF-8: {error}"))?;
    let body: Value =
        serde_json::from_str(&without_nan(text)).map_err(|error| format!("not JSON: {error}"))?;
    let status = match body {
        Value::Object(mut body) => body.remove("trainerStatus"),
        _ => return Err("not a JSON object".to_owned()),
    };
    match status {
        // The KEP allows a post without this status, for other kinds of statuses.
        None | Some(Value::Null) => Ok(Report::default()),
        Some(Value::Object(status)) => read_status(&status),
        Some(_) => Err("its trainerStatus is not an object".to_owned()),
    }
}

fn read_status(status: &Map<String, Value>) -> Result<Report, String> {
    let metrics = metrics(status.get("metrics"))?;
    let metric = |name: &str| metrics.get(name).copied();
    let percent = status.get("progressPercentage").and_then(number);
    let step = match metric("current_step") {
        Some(value) => Some(count(value).ok_or_else(|| {
            let value = shortened(value);
            format!("its metric current_step is not a number of steps: {value}")
        })?),
        None if percent.is_some_and(|percent| percent > 0.0 && percent < 100.0) => {
            return Err("it has no metric current_step".to_owned());
        }
        None => None,
    };
    let is_full = percent.is_some_and(|percent| percent >= 100.0);
    Ok(Report {
        step,
        total_steps: metric("total_steps").and_then(count),
        epoch: metric("current_epoch")
            .or_else(|| metric("epoch"))
            .and_then(count),
        loss: metric("loss")
            .or_else(|| metric("train_loss"))
            .and_then(number),
        samples_per_second: metric("train_samples_per_second")
            .and_then(number)
            .filter(|rate| *rate >= 0.0),
        // A program may round the share of a step to 100 percent.
        is_complete: step.is_none() && is_full,
    })
}

/// The beginning of a value, for the log.
fn shortened(value: &Value) -> String {
    const MAX_CHARS: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The values of the metrics by name. A metric without a name is left out.
fn metrics(list: Option<&Value>) -> Result<BTreeMap<&str, &Value>, String> {
    let list = match list {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Array(list)) => list.iter(),
        Some(_) => return Err("its metrics are not a list".to_owned()),
    };
    let named =
        list.filter_map(|metric| Some((metric.get("name")?.as_str()?, metric.get("value")?)));
    Ok(named.collect())
}

#[cfg(test)]
mod tests;
