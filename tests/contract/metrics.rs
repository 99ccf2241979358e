//! The metrics follow the conventions of Prometheus, and a page lists all of them.

use std::collections::BTreeSet;

use roundhouse_tests::exposition::{parse, problems};
use roundhouse_tests::{manifests, metrics_page};

#[test]
fn every_metric_follows_prometheus_conventions() {
    let mut names = BTreeSet::new();
    for (title, _, text) in metrics_page::expositions().unwrap() {
        for family in parse(&text).unwrap() {
            let found = problems(&family);
            assert!(found.is_empty(), "{title}: {found:?}");
            assert!(
                names.insert(family.name.clone()),
                "{} occurs twice",
                family.name
            );
        }
    }
    assert!(names.len() > 60, "{names:?}");
}

#[test]
fn metrics_page_is_up_to_date() {
    let committed = std::fs::read_to_string(manifests::repository().join(metrics_page::PATH));
    let generated = metrics_page::page().unwrap();
    assert!(
        committed.unwrap() == generated,
        "run make generate PARTS=metrics"
    );
}

#[test]
fn every_metric_in_the_sources_is_on_the_page() {
    let page = metrics_page::page().unwrap();
    let directories = [
        ("operator/src/metrics", "roundhouse_"),
        ("trainer-image/agent/src", "roundhouse_agent_"),
        ("trainer-image/report/src", "roundhouse_train_"),
    ];
    let mut num_found = 0;
    for (directory, prefix) in directories {
        let mut sources = String::new();
        super::read_all(&manifests::repository().join(directory), "rs", &mut sources);
        let is_name = |part: &&str| {
            let is_lower = |each: char| each.is_ascii_lowercase() || each == '_';
            part.starts_with(prefix) && part.chars().all(is_lower) && !part.ends_with('_')
        };
        for name in sources.split('"').filter(is_name) {
            let family = ["_bucket", "_sum", "_count"]
                .into_iter()
                .find_map(|suffix| name.strip_suffix(suffix));
            let family = family.unwrap_or(name);
            assert!(page.contains(&format!("`{family}`")), "{directory}: {name}");
            num_found += 1;
        }
    }
    assert!(num_found > 30, "{num_found}");
}
