//! Every command of the documentation has an entry in the table [`KNOWN`]: a file that runs it, or
//! the reason why no test does. The names in it exist: targets of make, files of the repository,
//! values of the chart, flags of the plugin.

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};

use roundhouse_tests::manifests::repository;

use super::{Page, markdown, pages};

mod known;

use known::{
    KNOWN,
    Proof::{NoTest, Runs},
};

/// A command of a page, with its place as `path:line`.
struct Line {
    place: String,
    text: String,
}

/// The commands of all pages. Continued lines are joined.
fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for page in pages() {
        let blocks = markdown::blocks(&page.text).into_iter();
        for block in blocks.filter(|block| block.language == "sh") {
            let place = format!("{}:{}", page.path, block.line);
            let joined = block.text.replace("\\\n", " ");
            for text in joined.lines().map(str::trim) {
                if !text.is_empty() && !text.starts_with('#') {
                    let (place, text) = (place.clone(), text.to_owned());
                    lines.push(Line { place, text });
                }
            }
        }
    }
    lines
}

/// The index of a command's entry in [`KNOWN`].
fn index_of(command: &str) -> Option<usize> {
    let fits = |start: &str| {
        let rest = command.strip_prefix(start);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '-', '/']))
    };
    let entries = KNOWN
        .iter()
        .enumerate()
        .filter(|(_, (start, _))| fits(start));
    entries
        .max_by_key(|(_, (start, _))| start.len())
        .map(|(at, _)| at)
}

#[test]
fn every_command_has_a_test_or_a_reason() {
    let lines = lines();
    assert!(lines.len() > 20);
    let mut used = HashSet::new();
    for Line { place, text } in lines {
        let entry = index_of(&text);
        assert!(
            entry.is_some(),
            "{place}: {text}: add to tests/contract/docs/commands/known.rs what runs this command"
        );
        used.extend(entry);
    }
    for (at, (start, _)) in KNOWN.iter().enumerate() {
        assert!(used.contains(&at), "no page has {start}: remove its entry");
    }
}

#[test]
fn proof_files_run_their_commands() {
    for (start, proof) in KNOWN {
        match proof {
            Runs(path, words) => {
                let text = Page::read(path).text;
                assert!(text.contains(words), "{start}: {path} has no {words}");
            }
            NoTest(reason) => assert!(!reason.is_empty(), "{start}"),
        }
    }
}

#[test]
fn every_code_block_has_a_language() {
    let languages: HashSet<&str> = [
        "sh", "yaml", "json", "text", "rust", "promql", "python", "diff",
    ]
    .into();
    for page in pages() {
        for block in markdown::blocks(&page.text) {
            let is_known = languages.contains(&*block.language);
            assert!(
                is_known,
                "{}:{}: {:?}",
                page.path, block.line, block.language
            );
        }
    }
}

#[test]
fn every_sh_block_is_valid_bash() {
    for page in pages() {
        for block in markdown::blocks(&page.text) {
            if block.language == "sh" {
                let mut shell = Command::new("bash");
                shell.arg("-n").stdin(Stdio::piped());
                let mut shell = shell.spawn().unwrap();
                let mut input = shell.stdin.take().unwrap();
                input.write_all(block.text.as_bytes()).unwrap();
                drop(input);
                assert!(
                    shell.wait().unwrap().success(),
                    "{}:{}",
                    page.path,
                    block.line
                );
            }
        }
    }
}

#[test]
fn commands_name_existing_files_and_flags() {
    let makefile = Page::read("Makefile").text;
    let values = Page::read("charts/roundhouse/values.yaml").text;
    let values: serde_json::Value = serde_saphyr::from_str(&values).unwrap();
    let plugin = Page::read("docs/reference/plugin.md").text;
    for Line { place, text } in lines() {
        let text = without_substitutions(&text);
        let words: Vec<&str> = text.split_whitespace().collect();
        for word in &words {
            if word.starts_with("examples/") || word.starts_with("charts/") {
                assert!(repository().join(word).exists(), "{place}: {word}");
            }
        }
        match words.as_slice() {
            ["make", target, ..] => {
                assert!(
                    makefile.contains(&format!("\n{target}: ## ")),
                    "{place}: {target}"
                );
            }
            ["helm", rest @ ..] => {
                let sets = rest.windows(2).filter(|pair| pair[0] == "--set");
                for key in sets
                    .filter_map(|pair| pair[1].split_once('='))
                    .map(|(key, _)| key)
                {
                    let pointer = format!("/{}", key.replace('.', "/"));
                    assert!(values.pointer(&pointer).is_some(), "{place}: {key}");
                }
            }
            ["kubectl", "roundhouse", rest @ ..] | ["kubectl-roundhouse", rest @ ..] => {
                let title = format!("\n## kubectl roundhouse {}\n", rest[0]);
                let (_, section) = plugin
                    .split_once(&title)
                    .unwrap_or_else(|| panic!("{place}: {text}"));
                let section = section.split("\n## ").next().unwrap();
                for flag in rest.iter().filter(|word| word.starts_with('-')) {
                    assert!(has_flag(section, flag), "{place}: {flag}");
                }
            }
            _ => {}
        }
    }
}

/// A command without its substitutions `$(...)`.
fn without_substitutions(command: &str) -> String {
    let mut parts = command.split("$(");
    let first = parts.next().unwrap_or_default().to_owned();
    let ends = parts.filter_map(|part| part.split_once(')'));
    ends.fold(first, |text, (_, end)| text + end)
}

/// Whether a help text lists a flag.
fn has_flag(help: &str, flag: &str) -> bool {
    help.split([' ', ',', '\n', '=']).any(|word| word == flag)
}
