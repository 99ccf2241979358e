//! Python in the documentation: the diff of the page about DDP is that of the example's scripts,
//! and all snippets are valid Python.

use std::io::Write;
use std::process::{Command, Stdio};

use roundhouse_tests::manifests::repository;

use super::{Page, markdown, pages};

/// The most lines that may be added to make the example's script elastic.
const MOST_LINES: usize = 15;

#[test]
fn diff_on_the_page_matches_the_scripts() {
    let page = Page::read("docs/guides/python-from-ddp.md");
    let blocks = markdown::blocks(&page.text);
    let shown = blocks.iter().find(|block| block.language == "diff");
    let mut diff = Command::new("diff");
    diff.args(["-u", "--label", "restart.py", "--label", "elastic.py"]);
    diff.args(["restart.py", "elastic.py"]);
    diff.current_dir(repository().join("examples/pytorch"));
    let real = String::from_utf8(diff.output().unwrap().stdout).unwrap();
    assert_eq!(shown.unwrap().text, real);
    let added = real.lines().skip(2).filter(|line| line.starts_with('+'));
    assert!(added.count() <= MOST_LINES);
}

#[test]
fn every_python_snippet_parses() {
    let mut snippets = 0;
    for page in pages() {
        for block in markdown::blocks(&page.text) {
            if block.language != "python" {
                continue;
            }
            let mut python = Command::new("python3");
            python.args(["-c", "import ast, sys; ast.parse(sys.stdin.read())"]);
            let mut python = python.stdin(Stdio::piped()).spawn().unwrap();
            let mut input = python.stdin.take().unwrap();
            input.write_all(block.text.as_bytes()).unwrap();
            drop(input);
            let place = format!("{}:{}", page.path, block.line);
            assert!(python.wait().unwrap().success(), "{place}");
            snippets += 1;
        }
    }
    assert!(snippets > 5, "{snippets}");
}
