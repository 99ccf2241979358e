//! `metrics`: prints the present metrics of a worker's agent.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use roundhouse_contract::ports;
use serde::Serialize;

use super::Outcome;
use crate::cluster::Cluster;
use crate::out::{self, Format, plain};

/// One sample for `-o json` and `-o yaml`.
#[derive(Debug, PartialEq, Serialize)]
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, String>,
    /// The value as text, because JSON has no `NaN` and no `+Inf`.
    value: &'a str,
}

pub(crate) async fn print(
    cluster: &Cluster,
    name: &str,
    filter: &str,
    output: Option<Format>,
) -> Outcome {
    let job = cluster.wanted_job(name).await?;
    if let Some(status) = job.status.as_ref().filter(|status| status.is_terminal()) {
        let state = status.state();
        anyhow::bail!("{name} has ended ({state}): workers serve metrics only while they run");
    }
    let pod = cluster.first_worker(&job).await?;
    let pod = pod.with_context(|| format!("{name} has no worker that trains"))?;
    let text = cluster.ask(&pod, ports::METRICS_PATH, "").await;
    let text = text
        .with_context(|| format!("{pod} does not answer: see `kubectl roundhouse why {name}`"))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<&str> = lines.filter(|line| line.contains(filter)).collect();
    if output.is_some() {
        let samples: Vec<Sample<'_>> = lines.into_iter().filter_map(sample).collect();
        out::print(&samples, output, |_| String::new())?;
    } else {
        for line in lines {
            out::write(&plain(line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a line of the exposition format:
/// <https://prometheus.io/docs/instrumenting/exposition_formats/>.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (head, labels, rest) = if let Some(begin) = line.find('{') {
        let (labels, rest) = labels(&line[begin + 1..])?;
        (&line[..begin], labels, rest)
    } else {
        let (head, rest) = line.split_once(' ')?;
        (head, BTreeMap::new(), rest)
    };
    Some(Sample {
        name: head,
        labels,
        value: rest.split_whitespace().next()?,
    })
}

/// Labels up to the closing brace, and the text after it.
fn labels(mut text: &str) -> Option<(BTreeMap<&str, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.insert(name, value);
        text = rest;
    }
}

/// A value up to its closing quote, and the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_name_labels_and_value() {
        let found = sample("a_total{rank=\"0\",path=\"x \\\"}\\\\ y\\n\"} 1e3 1700").unwrap();
        assert_eq!((found.name, found.value), ("a_total", "1e3"));
        assert_eq!(found.labels["rank"], "0");
        assert_eq!(found.labels["path"], "x \"}\\ y\n");
        let plain = sample("up NaN").unwrap();
        assert_eq!((plain.name, plain.value), ("up", "NaN"));
        assert!(plain.labels.is_empty());
        for wrong in ["", "a", "a{b=\"c} 1", "a{b} 1", "a{b=\"c\"}"] {
            assert_eq!(sample(wrong), None, "{wrong}");
        }
    }
}
