//! Checks the documentation: links have targets, the API server would accept the YAML, commands
//! have tests, and the tests and files that it names exist.

mod commands;
mod links;
mod markdown;
mod python;
mod sources;
mod versions;
mod yaml;

use std::path::Path;

use roundhouse_tests::manifests::repository;

/// A page with its path from the repository's root.
struct Page {
    path: String,
    text: String,
}

impl Page {
    fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(repository().join(path));
        Self {
            path: path.to_owned(),
            text: text.unwrap_or_else(|error| panic!("{path}: {error}")),
        }
    }
}

/// All pages of docs/, and the README.
fn pages() -> Vec<Page> {
    let mut paths = vec!["README.md".to_owned()];
    find_pages(Path::new("docs"), &mut paths);
    assert!(paths.len() > 15, "{paths:?}");
    paths.iter().map(|path| Page::read(path)).collect()
}

fn find_pages(directory: &Path, paths: &mut Vec<String>) {
    for entry in std::fs::read_dir(repository().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        if entry.path().is_dir() {
            find_pages(&path, paths);
        } else if path.extension().is_some_and(|it| it == "md") {
            paths.push(path.to_str().unwrap().to_owned());
        }
    }
    paths.sort();
}
