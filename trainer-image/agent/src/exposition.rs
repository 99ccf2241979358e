//! Merges the Prometheus text of many ranks into one: each sample gets a `rank` label, and each
//! family has its HELP and TYPE once and its samples together.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Maximum number of samples per rank. A script exports its own series, and one that creates a
/// series per data sample must not fill Prometheus.
const MAX_SAMPLES: usize = 1_000;
/// Maximum length of a sample in bytes: a name, labels and a number.
const MAX_BYTES: usize = 4_096;

#[derive(Default)]
struct Family<'a> {
    comments: Vec<&'a str>,
    samples: Vec<String>,
}

/// Merges `(rank, text)` pairs. Families come in the order of their names. The first samples of
/// each rank pass, up to a limit.
#[must_use]
pub fn merge<'a>(texts: impl IntoIterator<Item = (u32, &'a str)>) -> String {
    let mut families = BTreeMap::<&str, Family<'_>>::new();
    for (rank, text) in texts {
        let (mut current, mut left) = ("", MAX_SAMPLES);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.len() > MAX_BYTES || left == 0 {
                continue;
            }
            if let Some(name) = comment_family(line) {
                current = name;
                let family = families.entry(name).or_default();
                if !family.comments.contains(&line) && family.comments.len() < 2 {
                    family.comments.push(line);
                }
            } else if !line.starts_with('#') {
                left -= 1;
                // Samples of a histogram have other names; they follow the TYPE line of their
                // family.
                let name = sample_name(line);
                let family = if !current.is_empty() && name.starts_with(current) {
                    current
                } else {
                    name
                };
                families
                    .entry(family)
                    .or_default()
                    .samples
                    .push(labelled(line, rank));
            }
        }
    }
    let mut merged = String::new();
    for Family { comments, samples } in families.values() {
        for line in comments
            .iter()
            .copied()
            .chain(samples.iter().map(String::as_str))
        {
            let _ = writeln!(merged, "{line}");
        }
    }
    merged
}

/// Returns the family of a HELP or TYPE line.
fn comment_family(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("# HELP ")
        .or_else(|| line.strip_prefix("# TYPE "))?;
    rest.split_whitespace().next()
}

fn sample_name(line: &str) -> &str {
    line.split(['{', ' ']).next().unwrap_or(line)
}

/// Adds a `rank` label in front of the sample's own labels.
fn labelled(line: &str, rank: u32) -> String {
    let name = sample_name(line);
    let rest = &line[name.len()..];
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => format!("{name}{{rank=\"{rank}\"{labels}"),
        Some(labels) => format!("{name}{{rank=\"{rank}\",{labels}"),
        None => format!("{name}{{rank=\"{rank}\"}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK_0: &str = "# HELP loss Loss.\n# TYPE loss gauge\nloss 0.5\n\
        # HELP step_seconds Time.\n# TYPE step_seconds histogram\n\
        step_seconds_bucket{le=\"+Inf\"} 3\nstep_seconds_sum 1\nstep_seconds_count 3\n";

    #[test]
    fn samples_get_a_rank_label_and_families_stay_together() {
        let rank_1 = RANK_0.replace("loss 0.5", "loss 0.25");
        assert_eq!(
            merge([(0, RANK_0), (1, rank_1.as_str())]),
            "# HELP loss Loss.\n# TYPE loss gauge\nloss{rank=\"0\"} 0.5\nloss{rank=\"1\"} 0.25\n\
             # HELP step_seconds Time.\n# TYPE step_seconds histogram\n\
             step_seconds_bucket{rank=\"0\",le=\"+Inf\"} 3\nstep_seconds_sum{rank=\"0\"} 1\n\
             step_seconds_count{rank=\"0\"} 3\n\
             step_seconds_bucket{rank=\"1\",le=\"+Inf\"} 3\nstep_seconds_sum{rank=\"1\"} 1\n\
             step_seconds_count{rank=\"1\"} 3\n"
        );
    }

    #[test]
    fn samples_of_a_rank_are_limited_in_number_and_length() {
        let many: Vec<String> = (0..10_000)
            .map(|at| format!("a{{id=\"{at}\"}} 1\n"))
            .collect();
        let many = many.concat();
        let long = format!("b{{id=\"{}\"}} 1\nc 1\n", "x".repeat(MAX_BYTES));
        let merged = merge([(0, many.as_str()), (1, long.as_str())]);
        let samples = merged.lines().filter(|line| line.starts_with("a{"));
        assert_eq!(samples.count(), MAX_SAMPLES);
        assert!(merged.contains("a{rank=\"0\",id=\"0\"} 1\n"));
        assert!(merged.ends_with("c{rank=\"1\"} 1\n") && !merged.contains("b{"));
    }

    #[test]
    fn empty_labels_and_missing_comments_are_accepted() {
        assert_eq!(merge([(3, "up{} 1\n\n# a remark\n")]), "up{rank=\"3\"} 1\n");
    }
}
