//! Log lines of the processes. They get a prefix, are kept whole, and the last line of each process
//! is stored.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

mod explaining;
mod pieces;
mod speaker;

use explaining::explaining;
use pieces::Pieces;
pub use speaker::Source;
use speaker::Speaker;

/// Maximum length in bytes of a line that is kept for the termination message.
const KEPT_BYTES: usize = 400;
/// Maximum number of bytes per read.
const READ_BYTES: usize = 8 << 10;

/// The last line of each process's standard error that may explain its end, with the generation in
/// which it was written.
#[derive(Clone, Debug, Default)]
pub struct LastLines(Arc<Mutex<BTreeMap<u32, (u64, String)>>>);

impl LastLines {
    /// Returns the last line of a process that ended in a generation. A line of an earlier
    /// generation, such as an error of a lost peer, does not explain the end.
    #[must_use]
    pub fn of(&self, local_rank: u32, generation: u64) -> Option<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (said_in, line) = lines.get(&local_rank)?;
        (*said_in >= generation).then(|| line.clone())
    }

    /// Drops the lines of all processes, because they are restarted.
    pub(crate) fn forget(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Drops the line of one process, because it is restarted.
    pub(crate) fn forget_one(&self, local_rank: u32) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&local_rank);
    }

    fn keep(&self, speaker: &Speaker, line: &str) {
        if let Some(line) = explaining(line) {
            let end = line.floor_char_boundary(KEPT_BYTES);
            let kept = (speaker.generation(), line[..end].to_owned());
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.insert(speaker.local_rank(), kept);
        }
    }
}

/// Copies lines from a process to a sink until the process closes its end (see [`pieces`] for
/// the definition of a line). Bytes that are not UTF-8 are replaced, and a last line without
/// an end is completed.
pub fn forward(
    mut input: impl Read,
    mut output: impl Write,
    source: Source,
    last: Option<&LastLines>,
) {
    let (mut pieces, mut speaker) = (Pieces::default(), Speaker::new(source));
    let mut show = |line: &[u8]| {
        speaker.refresh();
        let text = String::from_utf8_lossy(line);
        if let Some(last) = last {
            last.keep(&speaker, &text);
        }
        // One write per line keeps the lines of different processes apart.
        let _ = output.write_all(format!("{}{text}\n", speaker.prefix()).as_bytes());
    };
    let mut bytes = [0; READ_BYTES];
    loop {
        match input.read(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return pieces.finish(show),
            Ok(read) => pieces.feed(&bytes[..read], Instant::now(), &mut show),
        }
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::paths;

    use super::*;

    #[test]
    fn lines_get_a_prefix_and_the_last_one_is_kept() {
        let source = Source {
            worker_index: 2,
            local_rank: 1,
            run_dir: "/nonexistent".into(),
        };
        let (mut output, last) = (Vec::new(), LastLines::default());
        forward(
            &b"one\n\xff two\r\n\nthree"[..],
            &mut output,
            source,
            Some(&last),
        );
        assert_eq!(
            String::from_utf8(output).unwrap(),
            "[worker 2.1] one\n[worker 2.1] \u{fffd} two\n[worker 2.1] \n[worker 2.1] three\n"
        );
        assert_eq!(last.of(1, 0).as_deref(), Some("three"));
        last.forget_one(1);
        assert_eq!(last.of(1, 0), None);
    }

    #[test]
    fn progress_bar_does_not_replace_the_last_line() {
        let source = Source {
            worker_index: 0,
            local_rank: 0,
            run_dir: "/nonexistent".into(),
        };
        let written = "ValueError: no\r 0%|  | 0/9 [00:00<?]\r 11%|█ | 1/9 [00:01<00:08]\n\u{1b}[A";
        let last = LastLines::default();
        forward(written.as_bytes(), std::io::sink(), source, Some(&last));
        assert_eq!(last.of(0, 0).as_deref(), Some("ValueError: no"));
    }

    #[test]
    fn line_of_an_earlier_generation_is_not_the_last_line() {
        let directory = tempfile::tempdir().unwrap();
        let source = Source {
            worker_index: 0,
            local_rank: 0,
            run_dir: directory.path().to_owned(),
        };
        let status = r#"{"phase":"Training","rank":0,"generation":2,"step":9}"#;
        std::fs::write(paths::rank_status(directory.path(), 0), status).unwrap();
        let last = LastLines::default();
        forward(
            &b"a peer is lost\n"[..],
            std::io::sink(),
            source,
            Some(&last),
        );
        assert_eq!(last.of(0, 2).as_deref(), Some("a peer is lost"));
        assert_eq!(last.of(0, 3), None);
    }
}
