//! Splits a stream of bytes into lines with bounded memory. It is pure: bytes and the time go in,
//! lines come out.
//!
//! A line ends with `\n` or `\r\n`. A program that draws a progress bar ends each of its states
//! with a lone `\r`; one state per second is shown. A line longer than [`MAX_BYTES`] is shown in
//! pieces.

use std::time::{Duration, Instant};

/// Maximum length of a piece in bytes.
pub(super) const MAX_BYTES: usize = 16 << 10;
/// Minimum time between two states of a progress bar that are shown.
const BAR_INTERVAL: Duration = Duration::from_secs(1);

/// The line that is being read.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    line: Vec<u8>,
    /// Whether the last byte was `\r`. The next byte decides its meaning.
    returned: bool,
    /// Whether a part of this line was shown as a piece.
    is_continued: bool,
    bar_shown_at: Option<Instant>,
}

impl Pieces {
    /// Takes in the bytes of one read. `show` receives each line or piece without its end.
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

    /// Ends the stream: the remaining bytes are a line.
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
        // A line that fits exactly into its pieces has no empty piece at its end.
        if !(self.is_continued && self.line.is_empty()) {
            show(&self.line);
        }
        self.line.clear();
        self.is_continued = false;
    }

    /// Ends one state of a progress bar.
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

/// Returns the start of the last character if it may be incomplete, otherwise the end, so that a
/// piece does not split a UTF-8 character.
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

    /// Returns the lines of chunks. Each chunk is read at the given milliseconds after the first.
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
    fn both_line_ends_work_in_all_chunks() {
        let text = b"one\r\n\ntwo\nthree";
        for cut in 0..=text.len() {
            let (first, rest) = text.split_at(cut);
            let shown = lines(&[(0, first), (0, rest)]);
            assert_eq!(shown, ["one", "", "two", "three"], "{cut}");
        }
    }

    #[test]
    fn progress_bar_is_shown_once_per_second_and_at_its_end() {
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
    fn endless_line_is_shown_in_pieces() {
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
    fn pieces_do_not_split_characters() {
        for character in ["é", "€", "😀"] {
            let line = format!("x{}", character.repeat(3 * MAX_BYTES / character.len()));
            let shown = lines(&[(0, line.as_bytes())]);
            assert!(shown.len() > 2, "{}", shown.len());
            assert!(shown.concat() == line, "{character}");
        }
    }
}
