//! Prints results: text for users, JSON or YAML for programs. Text from the cluster cannot control
//! the terminal, and colours are off when the output is not a terminal.

use std::fmt::Write as _;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Formats of the output for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Print JSON with indentation.
    Json,
    /// Print one YAML document.
    Yaml,
}

/// Prints a value as text, or in the requested format.
///
/// # Errors
/// The value cannot be serialized, or standard output is closed.
pub(crate) fn print<T: Serialize>(
    value: &T,
    format: Option<Format>,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let text = match format {
        None => text(value),
        Some(Format::Json) => json(value)?,
        Some(Format::Yaml) => serde_saphyr::to_string(value)?,
    };
    write(&text)
}

/// Prints text and one line end. Removes colours if standard output is not a terminal or `NO_COLOR`
/// is set.
///
/// # Errors
/// Standard output is closed.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}

/// Prints a line about work that continues even if the line cannot be written.
///
/// # Errors
/// The reader has closed standard output. A full disk is not an error.
pub(crate) fn line(text: &str) -> std::io::Result<()> {
    line_to(std::io::stdout(), text)
}

fn line_to(mut out: impl Write, text: &str) -> std::io::Result<()> {
    match writeln!(out, "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a message to standard error. `eprintln!` would panic if the message cannot be written.
pub(crate) fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Replaces characters that control a terminal by spaces, so that text from the cluster cannot
/// change the other output.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if controls(c) { ' ' } else { c })
        .collect()
}

/// Control characters (Unicode's Cc), and characters of Cf, Zl and Zp that are invisible, break a
/// line or change its direction: U+202E shows the rest of a line from right to left.
fn controls(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// JSON that escapes the characters that [`plain`] replaces. Of the control characters serde
/// escapes only those below U+0020, but U+009B also begins a terminal sequence.
fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        if controls(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}")?;
            }
        } else {
            text.push(c);
        }
    }
    Ok(text)
}

/// Text in a style; [`write`] removes the style if colours are off.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

pub(crate) fn heading(text: &str) -> String {
    styled(Style::new().bold(), text)
}

/// Whether a state is good or bad, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mood {
    Good,
    Bad,
    /// The job is neither healthy nor failed yet.
    Open,
}

/// The mood of a state or reason.
pub(crate) fn mood_of(state: &str) -> Mood {
    const GOOD: [&str; 5] = ["Training", "Completed", "Succeeded", "Ready", "Healthy"];
    const BAD: [&str; 4] = ["Failed", "OOMKilled", "CrashLoopBackOff", "Error"];
    let is_bad = BAD.contains(&state) || state.ends_with("Exceeded") || state.ends_with("Invalid");
    if GOOD.contains(&state) {
        Mood::Good
    } else if is_bad {
        Mood::Bad
    } else {
        Mood::Open
    }
}

/// The style of a state or reason: green for good, red for bad, yellow for the others.
pub(crate) fn style_of(state: &str) -> Style {
    let colour = match mood_of(state) {
        Mood::Good => AnsiColor::Green,
        Mood::Bad => AnsiColor::Red,
        Mood::Open => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(colour.into()))
}

/// A table in kubectl's style: no lines, columns as wide as their content. Each row has one cell
/// for each column.
pub(crate) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(plain("a\u{1b}[31mb\rc\u{9b}2Jd"), "a [31mb c 2Jd");
    }

    #[test]
    fn invisible_characters_become_spaces_or_json_escapes() {
        assert_eq!(plain("a\u{202e}b\u{200b}c\u{2028}d"), "a b c d");
        let text = "x\u{9b}2J\u{202e}\u{e0041}\u{e9}";
        let written = json(&text).unwrap();
        assert_eq!(written, "\"x\\u009b2J\\u202e\\udb40\\udc41\u{e9}\"");
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
    }

    #[test]
    fn line_fails_for_closed_pipe_but_not_for_full_disk() {
        let full = std::fs::File::options().write(true).open("/dev/full");
        line_to(full.unwrap(), "a line").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let error = line_to(writer, "a line").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn table_columns_are_aligned_without_trailing_spaces() {
        let rows = [vec!["a", "1"], vec!["longer\u{7}", "2"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let text = table(&["NAME", "N"], rows);
        assert_eq!(text, "NAME     N\na        1\nlonger   2");
    }
}
