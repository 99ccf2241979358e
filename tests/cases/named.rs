//! Finds the tests that a case names in `shownBy`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::ensure;
use roundhouse_tests::manifests::repository;

/// Fails if one of these tests exists neither in Rust nor in Python.
pub(crate) fn all_exist(names: &[String]) -> anyhow::Result<()> {
    static KNOWN: OnceLock<HashSet<String>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let mut known = HashSet::new();
        for directory in ["operator", "tests", "trainer-image"] {
            find(&repository().join(directory), &mut known);
        }
        known
    });
    for name in names {
        ensure!(known.contains(name), "there is no test {name}");
    }
    Ok(())
}

/// Adds the names of the functions in all sources below a directory.
fn find(directory: &Path, known: &mut HashSet<String>) {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    for path in entries.flatten().map(|entry| entry.path()) {
        let before = match path.extension().and_then(|it| it.to_str()) {
            _ if path.is_dir() => {
                find(&path, known);
                continue;
            }
            Some("rs") => "fn ",
            Some("py") => "def ",
            _ => continue,
        };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let functions = text.split(before).skip(1);
        known.extend(functions.filter_map(|it| Some(it.split_once('(')?.0.to_owned())));
    }
}
