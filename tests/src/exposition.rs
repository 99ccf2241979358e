//! Reads Prometheus' text format as strictly as a scrape does, and says what breaks the naming conventions.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
//! Conventions: <https://prometheus.io/docs/practices/naming/>.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};

/// All samples of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// What it says.
    pub help: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Names of its labels, without `le` of a histogram.
    pub labels: BTreeSet<String>,
    /// Its series, as they stand in the text.
    pub series: BTreeSet<String>,
}

/// Reads a text in which each family has its HELP and TYPE before its samples.
///
/// # Errors
/// The first line that a scrape would refuse, and a family without a type, a help or a sample.
pub fn parse(text: &str) -> anyhow::Result<Vec<Family>> {
    let mut families = Vec::<Family>::new();
    for line in text.lines() {
        take(&mut families, line).with_context(|| format!("in the line: {line}"))?;
    }
    ensure!(text.ends_with('\n'), "the last line has no end");
    let mut names = BTreeSet::new();
    for family in &families {
        let Family {
            name,
            help,
            kind,
            labels: _,
            series,
        } = family;
        let is_whole = !help.is_empty() && !kind.is_empty() && !series.is_empty();
        ensure!(is_whole, "{name} lacks its help, its type or samples");
        ensure!(names.insert(name.clone()), "{name} comes twice");
    }
    Ok(families)
}

fn take(families: &mut Vec<Family>, line: &str) -> anyhow::Result<()> {
    if let Some(rest) = line.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').context("no help")?;
        ensure!(is_name(name), "the name is not allowed");
        families.push(Family {
            name: name.to_owned(),
            help: help.to_owned(),
            ..Family::default()
        });
        return Ok(());
    }
    let last = families.last_mut().context("no HELP before it")?;
    if let Some(rest) = line.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').context("no type")?;
        ensure!(name == last.name, "its HELP is not before it");
        ensure!(
            matches!(kind, "counter" | "gauge" | "histogram"),
            "type {kind}"
        );
        kind.clone_into(&mut last.kind);
        return Ok(());
    }
    let (series, value) = line.rsplit_once(' ').context("no value")?;
    value.parse::<f64>().context("the value is not a number")?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let suffix = name.strip_prefix(&last.name);
    let suffix = suffix.context("it does not belong to the family before it")?;
    match (last.kind.as_str(), suffix) {
        ("histogram", "_bucket" | "_sum" | "_count") | ("counter" | "gauge", "") => {}
        (kind, _) => bail!("a {kind} has no sample of this name"),
    }
    let labels = labels.strip_suffix('}').context("labels have no end")?;
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, value) = label.split_once('=').context("a label has no value")?;
        ensure!(is_name(key) && !key.contains(':'), "label {key}");
        let is_quoted = value.len() >= 2 && value.starts_with('"') && value.ends_with('"');
        ensure!(is_quoted, "label {key} is not quoted");
        if (suffix, key) != ("_bucket", "le") {
            last.labels.insert(key.to_owned());
        }
    }
    ensure!(last.series.insert(series.to_owned()), "it comes twice");
    Ok(())
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next();
    first.is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':')
}

/// What breaks the naming conventions, as `promtool check metrics` would say it.
#[must_use]
pub fn problems(family: &Family) -> Vec<String> {
    let Family {
        name,
        help: _,
        kind,
        labels,
        series: _,
    } = family;
    let parts: Vec<&str> = name.split('_').collect();
    let has = |words: &[&str]| parts.iter().any(|part| words.contains(part));
    let ends = |suffixes: &[&str]| parts.last().is_some_and(|last| suffixes.contains(last));
    let lower = |name: &str| !name.contains(|each: char| each.is_ascii_uppercase() || each == ':');
    let is_counter = kind == "counter";
    let checks = [
        (
            is_counter == ends(&["total"]),
            "counters, and only they, end in _total",
        ),
        (
            !has(&[
                "milliseconds",
                "ms",
                "us",
                "minutes",
                "hours",
                "kilobytes",
                "kb",
                "mb",
                "mib",
                "percent",
            ]),
            "units are base units: seconds, bytes, ratio",
        ),
        (
            !has(&["gauge", "counter", "histogram"]),
            "the type is no part of the name",
        ),
        (
            !ends(&["count", "sum", "bucket"]),
            "the ending belongs to histograms",
        ),
        (
            kind != "histogram" || ends(&["seconds", "bytes"]),
            "a histogram ends in its unit",
        ),
        (
            lower(name) && labels.iter().all(|label| lower(label)),
            "names are in snake_case",
        ),
    ];
    let broken = checks.into_iter().filter(|(holds, _)| !holds);
    broken.map(|(_, rule)| format!("{name}: {rule}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a_seconds Time.\n# TYPE a_seconds histogram\n\
        a_seconds_bucket{job=\"x\",le=\"+Inf\"} 3\na_seconds_sum{job=\"x\"} 1.5\na_seconds_count{job=\"x\"} 3\n\
        # HELP b_total Things.\n# TYPE b_total counter\nb_total 7\n";

    #[test]
    fn families_are_read_with_their_labels() {
        let families = parse(TEXT).unwrap();
        let labels: Vec<_> = families.iter().map(|family| family.labels.len()).collect();
        assert_eq!(labels, [1, 0]);
        assert!(families.iter().all(|family| problems(family).is_empty()));
    }

    #[test]
    fn what_a_scrape_refuses_is_refused() {
        for (from, to) in [
            ("b_total 7", "b_total seven"),
            ("b_total 7", "b_total 7\nb_total 8"),
            ("b_total 7", "c_total 7"),
            ("# TYPE b_total counter\n", ""),
            ("b_total 7\n", ""),
            ("job=\"x\"} 1.5", "job=x} 1.5"),
            ("a_seconds_count", "a_seconds_max"),
            ("# HELP b_total Things.", "# HELP a_seconds Things."),
        ] {
            assert!(TEXT.contains(from));
            assert!(parse(&TEXT.replace(from, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn names_that_break_the_conventions_are_told() {
        for (name, kind) in [
            ("a", "counter"),
            ("a_total", "gauge"),
            ("a_ms", "gauge"),
            ("a_gauge", "gauge"),
            ("a_count", "gauge"),
            ("a_size", "histogram"),
            ("aB", "gauge"),
        ] {
            let family = Family {
                name: name.to_owned(),
                kind: kind.to_owned(),
                ..Family::default()
            };
            assert_eq!(
                problems(&family).len(),
                1,
                "{name}: {:?}",
                problems(&family)
            );
        }
    }
}
