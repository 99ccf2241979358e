//! Tables in Markdown.

/// First line of every generated page.
pub(crate) const MARK: &str =
    "<!-- Generated from the sources by `make generate`: do not edit. -->\n\n";

/// A table: one line for the titles, one for each row.
pub(crate) fn table<const N: usize>(
    titles: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut text = line(titles.map(str::to_owned));
    text.push('|');
    text += &"---|".repeat(N);
    text.push('\n');
    for row in rows {
        text += &line(row);
    }
    text
}

fn line<const N: usize>(cells: [String; N]) -> String {
    let cells = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
    format!("| {} |\n", cells.join(" | "))
}

/// Formats a text as inline code.
pub(crate) fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_in_one_line_and_keep_their_bars() {
        let text = table(["a", "b"], [["x|y".to_owned(), "one\ntwo".to_owned()]]);
        assert_eq!(text, "| a | b |\n|---|---|\n| x\\|y | one two |\n");
    }
}
