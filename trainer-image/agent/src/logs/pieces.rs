//! Cuts a stream of bytes into lines, with bounded memory. Pure: bytes and the time go in, lines come out.
//!
//! A line ends with `\n` or `\r\n`. A program that draws a progress bar ends each state of it with a lone `\r`;
//! of these one is shown each second. A line that is longer than [`MAX_BYTES`] is shown in pieces.

use std::time::{Duration, Instant};

/// Longest piece of a line.
pub(super) const MAX_BYTES: usize = 16 << 10;
/// Shortest time between two states of a progress bar that are shown.
const BAR_INTERVAL: Duration = Duration::from_secs(1);

/// The line that is being read.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    line: Vec<u8>,
    /// Whether the last byte was `\r`: the next one tells what it meant.
    returned: bool,
    /// Whether a part of this line was shown as a piece.
    is_continued: bool,
    bar_shown_at: Option<Instant>,
}

impl Pieces {
    /// Takes in bytes that were read at a time; `show` gets each line or piece without its end.
    pub(super) fn feed(&mut self, bytes: &[u8], now: Instant, mut show: impl FnMut(&[u8])) {
        for byte in bytes {
            if self.returned && *byte != b'\n' {
                self.end_bar(now, &mut show);
            }
            self.returned = false;
            match byte {
                b'\n' => self.end_line(&mut show),
                b'\r' => self.returned = true,
                _ => self.push(*byte, &mut show),
            }
        }
    }

    /// The stream has ended: what is left is a line.
    pub(super) fn finish(&mut self, mut show: impl FnMut(&[u8])) {
        if !self.line.is_empty() {
            self.end_line(&mut show);
        }
    }

    fn push(&mut self, byte: u8, show: &mut impl FnMut(&[u8])) {
        if self.line.len() >= MAX_BYTES {
            let end = start_of_last_character(&self.line);
            show(&self.line[..end]);
            self.line.drain(..end);
            self.is_continued = true;
        }
        self.line.push(byte);
    }

    fn end_line(&mut self, show: &mut impl FnMut(&[u8])) {
        // A line that fits into its pieces exactly has no empty one at its end.
        if !(self.is_continued && self.line.is_empty()) {
            show(&self.line);
        }
        self.line.clear();
        self.is_continued = false;
    }

    /// What stands in the line is one state of a progress bar.
    fn end_bar(&mut self, now: Instant, show: &mut impl FnMut(&[u8])) {
        let is_due = self
            .bar_shown_at
            .is_none_or(|then| now.saturating_duration_since(then) >= BAR_INTERVAL);
        if is_due && !self.line.is_empty() {
            show(&self.line);
            self.bar_shown_at = Some(now);
        }
        self.line.clear();
        self.is_continued = false;
    }
}

/// Where the last character begins if it may be incomplete, else the end: a piece does not cut a character of
/// UTF-8.
fn start_of_last_character(bytes: &[u8]) -> usize {
    let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let tail = bytes.iter().rev().take(4);
    let num_continuations = tail.take_while(|byte| is_continuation(byte)).count();
    match bytes.len().checked_sub(num_continuations + 1) {
        Some(start) if start > 0 && num_continuations < 4 && bytes[start] >= 0b1100_0000 => start,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of chunks, of which each is read so many milliseconds after the first.
    fn lines(chunks: &[(u64, &[u8])]) -> Vec<String> {
        let (start, mut pieces, mut shown) = (Instant::now(), Pieces::default(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for (after, chunk) in chunks {
            let now = start + Duration::from_millis(*after);
            pieces.feed(chunk, now, |line| shown.push(text(line)));
        }
        pieces.finish(|line| shown.push(text(line)));
        shown
    }

    #[test]
    fn lines_end_with_either_end_wherever_the_chunks_are_cut() {
        let text = b"one\r\n\ntwo\nthree";
        for cut in 0..=text.len() {
            let (first, rest) = text.split_at(cut);
            let shown = lines(&[(0, first), (0, rest)]);
            assert_eq!(shown, ["one", "", "two", "three"], "{cut}");
        }
    }

    #[test]
    fn a_progress_bar_is_shown_once_a_second_and_at_its_end() {
        let states: Vec<(u64, Vec<u8>)> = (0..=30)
            .map(|n| (n * 100, format!("\r{n} of 30").into_bytes()))
            .collect();
        let mut chunks: Vec<(u64, &[u8])> = states
            .iter()
            .map(|(after, state)| (*after, state.as_slice()))
            .collect();
        chunks.push((3_000, b"\nnext\n"));
        assert_eq!(
            lines(&chunks),
            ["0 of 30", "10 of 30", "20 of 30", "30 of 30", "next"]
        );
    }

    #[test]
    fn an_endless_line_is_shown_in_pieces_and_never_held_as_a_whole() {
        let mut pieces = Pieces::default();
        let (mut num_shown, mut bytes) = (0, 0);
        for _ in 0..1_000 {
            pieces.feed(&[b'x'; 1_000], Instant::now(), |piece| {
                num_shown += 1;
                bytes += piece.len();
            });
            assert!(pieces.line.len() <= MAX_BYTES);
        }
        assert_eq!(num_shown, 1_000_000 / MAX_BYTES);
        assert_eq!(bytes + pieces.line.len(), 1_000_000);
    }

    #[test]
    fn a_piece_cuts_no_character() {
        for character in ["é", "€", "😀"] {
            let line = format!("x{}", character.repeat(3 * MAX_BYTES / character.len()));
            let shown = lines(&[(0, line.as_bytes())]);
            assert!(shown.len() > 2, "{}", shown.len());
            assert!(shown.concat() == line, "{character}");
        }
    }
}
