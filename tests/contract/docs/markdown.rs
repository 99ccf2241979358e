//! Parses the parts of Markdown that the checks need: fenced blocks, headings, links.

/// A fenced block of code.
pub(super) struct Block {
    pub(super) language: String,
    pub(super) text: String,
    /// The line of its first fence, counted from 1.
    pub(super) line: usize,
}

/// The fenced blocks of a page. The indentation of their fences is removed from their lines.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open = None::<(Block, usize)>;
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match (&mut open, trimmed.strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                let text = String::new();
                let line = at + 1;
                open = Some((
                    Block {
                        language,
                        text,
                        line,
                    },
                    indent,
                ));
            }
            (None, None) => {}
            (Some(_), Some(_)) => blocks.extend(open.take().map(|(block, _)| block)),
            (Some((block, indent)), None) => {
                let cut = (*indent).min(line.len() - trimmed.len());
                block.text += &line[cut..];
                block.text.push('\n');
            }
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// The text without its fenced blocks and code spans, line by line.
pub(super) fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push(line.split('`').step_by(2).collect());
        }
    }
    lines
}

/// The targets of the links and pictures of a page.
pub(super) fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            found.push(target.to_owned());
        }
    }
    found
}

/// The anchors of a page's headings, as code hosts and mdBook derive them.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            let title: String = title.chars().filter(kept).collect();
            found.push(title.replace(' ', "-"));
        }
    }
    found
}

#[test]
fn blocks_in_lists_lose_their_indentation() {
    let blocks = blocks("1. Do:\n\n   ```sh\n   ls \\\n     -l\n   ```\n");
    assert_eq!(
        (&*blocks[0].language, &*blocks[0].text),
        ("sh", "ls \\\n  -l\n")
    );
    assert_eq!(blocks[0].line, 3);
}

#[test]
fn links_are_found_outside_of_code() {
    let text = "See [a](b.md#c) and `[no](x)`.\n```\n[no](y)\n```\n![p](q.svg)\n";
    assert_eq!(links(text), ["b.md#c", "q.svg"]);
}

#[test]
fn anchors_are_derived_from_headings() {
    let text = "# Batch, memory, precision\n```\n# no\n```\n### `spec.a[]`\n";
    assert_eq!(anchors(text), ["batch-memory-precision", "speca"]);
}
