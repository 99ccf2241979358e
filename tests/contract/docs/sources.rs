//! The tests, files and directories that the design and other pages name exist in the sources.

use std::collections::HashSet;

use roundhouse_tests::manifests::repository;

use super::{Page, pages};

/// The pages that name tests of the sources.
const PAGES: [&str; 3] = ["DESIGN.md", "docs/cases.md", "docs/guarantees.md"];
/// A name in snake case with fewer words is not the name of a test.
const MIN_WORDS_OF_A_TEST: usize = 4;

/// The code spans of a page outside of its blocks. A span over two lines is joined.
fn spans(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose += line.trim();
            prose.push('\n');
        }
    }
    let spans = prose.split('`').skip(1).step_by(2);
    spans.map(str::to_owned).collect()
}

/// Whether a span is the name of a test: at least four words in snake case, but no metric.
fn is_test(span: &str) -> bool {
    let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_metric = span.starts_with("roundhouse_");
    span.chars().all(is_snake) && span.split('_').count() >= MIN_WORDS_OF_A_TEST && !is_metric
}

/// Whether a span is a path of this repository: its first part is one of the top directories.
fn is_path(span: &str) -> bool {
    let first = span.split('/').next().unwrap_or_default();
    span.contains('/')
        && !span.contains([' ', '<', '*'])
        && !first.is_empty()
        && repository().join(first).is_dir()
}

/// Whether a span is a folder of tests/cases.
fn is_case(span: &str) -> bool {
    let name = span.strip_prefix("tests/cases/");
    name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

#[test]
fn every_test_named_in_the_documentation_exists() {
    let (mut sources, mut scripts) = (String::new(), String::new());
    for directory in ["operator", "tests", "trainer-image"] {
        crate::read_all(&repository().join(directory), "rs", &mut sources);
    }
    for tests in ["tests", "tests_hf", "tests_lightning", "tests_trackers"] {
        let python = repository().join("trainer-image/python").join(tests);
        crate::read_all(&python, "py", &mut scripts);
    }
    let functions = sources.split("fn ").skip(1);
    let functions = functions.chain(scripts.split("def ").skip(1));
    let known: HashSet<&str> = functions.filter_map(|it| it.split('(').next()).collect();
    let mut missing = Vec::new();
    for page in PAGES {
        let text = Page::read(page).text;
        let exists = |span: &str| {
            let expectation = || repository().join(span).join("expect.yaml");
            (!is_test(span) || known.contains(span)) && (!is_case(span) || expectation().is_file())
        };
        let named = spans(&text).into_iter().filter(|span| !exists(span));
        missing.extend(named.map(|name| format!("{page}: {name}")));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_case_has_a_test() {
    let mut num_cases = 0;
    for line in Page::read("docs/cases.md").text.lines() {
        let is_head = line.starts_with("| failure") || line.starts_with("|---");
        if line.starts_with('|') && !is_head {
            let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
            assert_eq!(cells.len(), 2, "a row must have two cells: {line}");
            let tests = spans(cells[1]);
            assert!(
                !tests.is_empty() && tests.iter().all(|it| is_test(it) || is_case(it)),
                "the second cell must name tests: {line}"
            );
            num_cases += 1;
        }
    }
    assert!(num_cases > 100, "{num_cases}");
}

#[test]
fn every_path_named_in_the_design_exists() {
    let mut named = pages();
    named.retain(|page| page.path.starts_with("docs/decisions/"));
    named.push(Page::read("DESIGN.md"));
    let mut num_paths = 0;
    for page in named {
        for path in spans(&page.text).iter().filter(|it| is_path(it)) {
            assert!(repository().join(path).exists(), "{}: {path}", page.path);
            num_paths += 1;
        }
    }
    assert!(num_paths > 50, "{num_paths}");
}

#[test]
fn test_names_and_paths_are_recognized() {
    assert!(is_test("a_job_waits_until_each_write_is_seen"));
    assert!(!is_test("roundhouse_train_abandoned_threads") && !is_test("spec.suspend"));
    assert!(is_path("operator/planner") && is_path("tests/no-such-directory"));
    assert!(!is_path("ledger/gen-1.jsonl") && !is_path("checkpoints/gen-<generation>"));
    assert!(
        is_case("tests/cases/01-a") && !is_case("tests/cases/README.md/a") && !is_case("tests/e2e")
    );
    assert_eq!(spans("`a`, and `b`\n```\n`c`\n```\n"), ["a", "b"]);
}
