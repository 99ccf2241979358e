//! Every link of the documentation leads to a file of the repository and to an existing heading.

use std::path::{Component, Path, PathBuf};

use roundhouse_tests::manifests::repository;

use super::{Page, markdown, pages};

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    let more = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "DESIGN.md",
        "SECURITY.md",
        "trainer-image/README.md",
        "examples/own-model/README.md",
    ];
    for page in pages().into_iter().chain(more.map(Page::read)) {
        for link in markdown::links(&page.text) {
            if let Err(why) = follow(&page.path, &link) {
                broken.push(format!("{}: {link}: {why}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn follow(from: &str, link: &str) -> Result<(), String> {
    if link.starts_with("https://") {
        return Ok(());
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if file.is_empty() {
        PathBuf::from(from)
    } else {
        normalized(&Path::new(from).parent().unwrap().join(file))
    };
    let full = repository().join(&path);
    if !full.exists() {
        return Err("no such file".to_owned());
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let text = std::fs::read_to_string(full).map_err(|error| error.to_string())?;
    let is_there = markdown::anchors(&text).iter().any(|it| it == anchor);
    is_there
        .then_some(())
        .ok_or_else(|| "no such heading".to_owned())
}

/// A path with its `..` resolved.
fn normalized(path: &Path) -> PathBuf {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = Page::read("docs/SUMMARY.md");
    let listed = markdown::links(&summary.text);
    for page in pages() {
        if let Some(name) = page.path.strip_prefix("docs/")
            && name != "SUMMARY.md"
        {
            let times = listed.iter().filter(|link| *link == name).count();
            assert_eq!(times, 1, "docs/{name} is in docs/SUMMARY.md {times} times");
        }
    }
}

#[test]
fn broken_links_are_found() {
    assert!(follow("docs/concepts.md", "no-such-page.md").is_err());
    assert!(follow("docs/concepts.md", "guides/gpus.md#no-such-heading").is_err());
    assert_eq!(
        follow("docs/guides/gpus.md", "../concepts.md#words"),
        Ok(())
    );
}
