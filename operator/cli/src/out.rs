//! How results are printed: as text for people, as JSON or YAML for programs. Text of the cluster never steers the
//! terminal, and colours are off when the output is not one.

use std::fmt::Write as _;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Form of the output for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// JSON, indented.
    Json,
    /// YAML.
    Yaml,
}

/// Prints a value as text, or in the form that was asked for.
///
/// # Errors
/// The value cannot be written, or standard output is closed.
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

/// Prints text, with one line end after it. Colours are left out when standard output is no terminal, or when
/// `NO_COLOR` is set.
///
/// # Errors
/// Standard output is closed.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}

/// Prints a line about something that continues whether or not it can be shown.
///
/// # Errors
/// Nobody reads standard output any more. What it was redirected to may be full: that is no error.
pub(crate) fn line(text: &str) -> std::io::Result<()> {
    line_to(std::io::stdout(), text)
}

fn line_to(mut out: impl Write, text: &str) -> std::io::Result<()> {
    match writeln!(out, "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Says something beside the result. `eprintln!` would panic if standard error cannot be written.
pub(crate) fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Without characters that steer a terminal: text of the cluster must not change what a person sees beside it.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if steers(c) { ' ' } else { c })
        .collect()
}

/// Control characters (Unicode's Cc), and those of Cf, Zl and Zp that are invisible, break a line or change its
/// direction: U+202E shows the rest of a line from right to left.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// JSON in which what [`plain`] leaves out is written as an escape. Of control characters serde escapes only those below
/// U+0020, and a terminal takes U+009B for the beginning of a sequence.
fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        if steers(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}")?;
            }
        } else {
            text.push(c);
        }
    }
    Ok(text)
}

/// Text in a style; [`write`] removes the style where it is not wanted.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// For headings.
pub(crate) fn heading(text: &str) -> String {
    styled(Style::new().bold(), text)
}

/// How a state is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mood {
    /// It goes well.
    Good,
    /// It has failed.
    Bad,
    /// Neither, so far.
    Open,
}

/// How a state or reason is to be taken.
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

/// The style of a state or reason: green for what goes well, red for what has failed, yellow for the rest.
pub(crate) fn style_of(state: &str) -> Style {
    let colour = match mood_of(state) {
        Mood::Good => AnsiColor::Green,
        Mood::Bad => AnsiColor::Red,
        Mood::Open => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(colour.into()))
}

/// A table as kubectl prints them: no lines, columns as wide as their content. `rows` have one cell for each column.
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
    fn characters_that_turn_or_hide_text_become_spaces_and_escapes_in_json() {
        assert_eq!(plain("a\u{202e}b\u{200b}c\u{2028}d"), "a b c d");
        let text = "x\u{9b}2J\u{202e}\u{e0041}\u{e9}";
        let written = json(&text).unwrap();
        assert_eq!(written, "\"x\\u009b2J\\u202e\\udb40\\udc41\u{e9}\"");
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
    }

    #[test]
    fn a_line_fails_for_a_reader_that_is_gone_and_not_for_a_full_disk() {
        let full = std::fs::File::options().write(true).open("/dev/full");
        line_to(full.unwrap(), "a line").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let error = line_to(writer, "a line").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_table_has_aligned_columns_and_no_trailing_spaces() {
        let rows = [vec!["a", "1"], vec!["longer\u{7}", "2"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let text = table(&["NAME", "N"], rows);
        assert_eq!(text, "NAME     N\na        1\nlonger   2");
    }
}
