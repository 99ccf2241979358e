//! The scripts build packages of the workspace by name.

use std::collections::BTreeSet;
use std::process::Command;

use roundhouse_tests::manifests::repository;

/// Names that `scripts/programs` takes beside packages.
const OTHER: [&str; 1] = ["image-agent"];

fn tracked(pattern: &str) -> Vec<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", pattern]).current_dir(repository());
    let listed = String::from_utf8(git.output().unwrap().stdout).unwrap();
    listed.lines().map(str::to_owned).collect()
}

fn packages() -> BTreeSet<String> {
    let manifests = tracked("*Cargo.toml");
    let name = |path: &String| {
        let text = std::fs::read_to_string(repository().join(path)).unwrap();
        let line = text.lines().find(|line| line.starts_with("name = "))?;
        Some(line.split('"').nth(1)?.to_owned())
    };
    manifests.iter().filter_map(name).collect()
}

/// The packages that a line of a script names: after `-p`, `scripts/programs` and, in that script,
/// `set --`.
fn named(line: &str) -> Vec<&str> {
    let is_name = |word: &&str| {
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(is_letter)
    };
    let mut found = Vec::new();
    if line.contains("cargo ") || line.contains("own=") {
        let options = line
            .match_indices(" -p ")
            .map(|(at, option)| at + option.len());
        let words = options.filter_map(|at| line[at..].split_whitespace().next());
        found.extend(words.filter(is_name));
    }
    for mark in ["scripts/programs ", "set -- roundhouse-operator"] {
        if let Some(at) = line.find(mark) {
            let words = line[at..].trim_start_matches("set --").split([' ', ';']);
            let words = words.skip(usize::from(mark.starts_with("scripts")));
            found.extend(words.take_while(|word| word.is_empty() || is_name(word)));
        }
    }
    found.retain(|word| !word.is_empty());
    found
}

#[test]
fn packages_named_in_scripts_exist() {
    let packages = packages();
    let mut num_named = 0;
    for path in ["scripts", "tests/run", "*.sh", ".github"]
        .map(tracked)
        .concat()
    {
        let Ok(text) = std::fs::read_to_string(repository().join(&path)) else {
            continue;
        };
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        for name in code.flat_map(named) {
            let exists = packages.contains(name) || OTHER.contains(&name);
            assert!(exists, "{path}: there is no package {name}");
            num_named += 1;
        }
    }
    assert!(num_named > 20, "{num_named}");
}
