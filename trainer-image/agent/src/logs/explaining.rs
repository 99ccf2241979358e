//! Decides which line of a process may explain its end. It is pure. A termination message has no
//! place for the state of a progress bar, or for the codes with which a terminal draws it.

/// Returns the text of a line without progress bars, escape sequences and other control characters,
/// or `None` if nothing remains.
pub(super) fn explaining(line: &str) -> Option<String> {
    let text = without_controls(line);
    let text = after_bars(&text).trim();
    (!text.is_empty() && !is_count(text)).then(|| text.to_owned())
}

/// What stands behind states of tqdm such as ` 11%|█   | 16/150 [00:03<00:27,  4.88it/s]`. A process
/// may write a message there, because a bar that is not complete does not end its line.
fn after_bars(mut line: &str) -> &str {
    while let Some((_, bar)) = line.split_once("%|") {
        let numbers = bar.split_once('[').map_or("", |(_, numbers)| numbers);
        line = numbers.split_once(']').map_or("", |(_, after)| after);
    }
    line
}

/// Whether a line is a state of tqdm without a total: `16it [00:03,  4.88it/s]`.
fn is_count(line: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    line.split_once("it [").is_some_and(|(count, numbers)| {
        // A description may come first, and `k` or `M` may end the number.
        let count = count.rsplit(' ').next().unwrap_or_default();
        let count = count.trim_end_matches(['k', 'M', 'G']).replace('.', "");
        let time = numbers.split([',', '<']).next().unwrap_or_default();
        let is_time = time.contains(':') && time.split(':').all(is_number);
        is_number(&count) && is_time && numbers.ends_with(']')
    })
}

/// Leaves out control characters, and whole escape sequences, such as the colour of an error.
fn without_controls(line: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(line.len()), line.chars());
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' => skip_sequence(&mut rest),
            '\t' => text.push(' '),
            _ if character.is_control() => {}
            _ => text.push(character),
        }
    }
    text
}

/// Skips the rest of an escape sequence (ECMA-48): `[` begins one that ends with a letter or a
/// sign from `@` to `~`, `]` one that ends with BEL or ESC `\`, and others have one character.
fn skip_sequence(rest: &mut std::str::Chars<'_>) {
    match rest.next() {
        Some('[') => {
            rest.find(|it| ('@'..='~').contains(it));
        }
        Some(']') if rest.find(|it| matches!(it, '\u{7}' | '\u{1b}')) == Some('\u{1b}') => {
            rest.next();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_progress_bars_explain_nothing() {
        for line in [
            " 11%|█         | 16/150 [00:03<00:27,  4.88it/s]",
            "epoch 2:  50%|#####     | 5/10",
            "16it [00:03,  4.88it/s]",
            "reading: 1.20kit [1:00:03, 4.88kit/s]",
            "\u{1b}[A",
            "\u{1b}[2K\u{1b}[?25l",
            "  ",
        ] {
            assert_eq!(explaining(line), None, "{line:?}");
        }
    }

    #[test]
    fn errors_are_kept_without_their_colours() {
        for (line, expected) in [
            (
                "ValueError: 11 % of | is\tno bar ",
                "ValueError: 11 % of | is no bar",
            ),
            (
                "\u{1b}[1;31mCUDA error:\u{1b}[0m no device",
                "CUDA error: no device",
            ),
            (
                " 11%|█   | 16/150 [00:03<00:27,  4.88it/s][load] no file",
                "[load] no file",
            ),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;x\u{1b}\\b\u{1b}7c\0", "abc"),
            ("cut off \u{1b}[", "cut off"),
            (
                "ValueError: over the limit [0, 8]",
                "ValueError: over the limit [0, 8]",
            ),
            ("cannot wait [12:30]", "cannot wait [12:30]"),
        ] {
            assert_eq!(explaining(line).as_deref(), Some(expected), "{line:?}");
        }
    }
}
