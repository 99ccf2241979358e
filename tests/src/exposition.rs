//! Parses Prometheus' text format as strictly as a scrape does, and finds names that break the
//! naming conventions.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
//! Conventions: <https://prometheus.io/docs/practices/naming/>.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};

/// A metric family: all samples of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    pub name: String,
    /// The text of its `# HELP` line.
    pub help: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// The names of its labels, without `le` of a histogram.
    pub labels: BTreeSet<String>,
    /// Its series, as written in the text: name and labels.
    pub series: BTreeSet<String>,
}

/// Parses a text in which each family has its HELP and TYPE lines before its samples.
///
/// # Errors
/// The first line that a scrape would refuse, or a family without a type, a help text or a sample.
pub fn parse(text: &str) -> anyhow::Result<Vec<Family>> {
    let mut families = Vec::<Family>::new();
    for line in text.lines() {
        take(&mut families, line).with_context(|| format!("in the line: {line}"))?;
    }
    ensure!(
        text.ends_with('\n'),
        "the last line does not end in a newline"
    );
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
        ensure!(is_whole, "{name} has no help, no type or no samples");
        ensure!(names.insert(name.clone()), "{name} occurs twice");
    }
    Ok(families)
}

fn take(families: &mut Vec<Family>, line: &str) -> anyhow::Result<()> {
    if let Some(rest) = line.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').context("no help")?;
        ensure!(
            is_name(name),
            "the name has characters that are not allowed"
        );
        families.push(Family {
            name: name.to_owned(),
            help: help.to_owned(),
            ..Family::default()
        });
        return Ok(());
    }
    let last = families
        .last_mut()
        .context("no HELP line before this line")?;
    if let Some(rest) = line.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').context("no type")?;
        ensure!(
            name == last.name,
            "the HELP line before this line is of another family"
        );
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
    let suffix = suffix.context("the sample does not belong to the family before it")?;
    match (last.kind.as_str(), suffix) {
        ("histogram", "_bucket" | "_sum" | "_count") | ("counter" | "gauge", "") => {}
        (kind, _) => bail!("a {kind} has no sample of this name"),
    }
    let labels = labels
        .strip_suffix('}')
        .context("the labels have no closing brace")?;
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, value) = label.split_once('=').context("a label has no value")?;
        ensure!(is_name(key) && !key.contains(':'), "label {key}");
        let is_quoted = value.len() >= 2 && value.starts_with('"') && value.ends_with('"');
        ensure!(is_quoted, "label {key} is not quoted");
        if (suffix, key) != ("_bucket", "le") {
            last.labels.insert(key.to_owned());
        }
    }
    ensure!(
        last.series.insert(series.to_owned()),
        "the series occurs twice"
    );
    Ok(())
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next();
    first.is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':')
}

/// The naming conventions that a family breaks, as `promtool check metrics` would report them.
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
            "counters end in _total, and other metrics do not",
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
            "the unit must be a base unit: seconds, bytes, ratio",
        ),
        (
            !has(&["gauge", "counter", "histogram"]),
            "the name must not contain the type",
        ),
        (
            !ends(&["count", "sum", "bucket"]),
            "the suffix is reserved for histograms",
        ),
        (
            kind != "histogram" || ends(&["seconds", "bytes"]),
            "the name of a histogram must end in its unit",
        ),
        (
            lower(name) && labels.iter().all(|label| lower(label)),
            "names must be in snake_case",
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
    fn parser_reads_families_with_labels() {
        let families = parse(TEXT).unwrap();
        let labels: Vec<_> = families.iter().map(|family| family.labels.len()).collect();
        assert_eq!(labels, [1, 0]);
        assert!(families.iter().all(|family| problems(family).is_empty()));
    }

    #[test]
    fn parser_refuses_malformed_expositions() {
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
    fn unconventional_metric_names_are_reported() {
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
