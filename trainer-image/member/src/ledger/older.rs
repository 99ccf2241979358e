//! Reads the end of older generations' files, because the last lines are a small part of a long
//! file.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;

use roundhouse_elastic::audit;
use roundhouse_elastic::{Line, ledger};

use crate::checkpoint::{Directory, about};

/// Size of the first read from the end. Each further read is four times as large.
const FIRST_BYTES: u64 = 64 << 10;

/// Reads the header of a generation's file and its lines from a step on. `None`: the header is
/// incomplete.
///
/// # Errors
/// The error of the volume; see [`is_unreadable`] for permanent ones.
pub(super) fn read(
    directory: &Directory,
    generation: u64,
    from: u64,
) -> io::Result<Option<audit::File>> {
    read_from_end(directory, generation, from, FIRST_BYTES)
}

/// Whether a file is damaged, missing or not readable for this process, so that a retry is useless.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound
    )
}

fn read_from_end(
    directory: &Directory,
    generation: u64,
    from: u64,
    first_bytes: u64,
) -> io::Result<Option<audit::File>> {
    let path = directory.ledger().join(ledger::file_name(generation));
    let damaged = |reason: String| io::Error::new(io::ErrorKind::InvalidData, about(&path, reason));
    let file = File::open(&path)?;
    let mut text = String::new();
    BufReader::new(&file).read_line(&mut text)?;
    if !text.ends_with('\n') {
        return Ok(None);
    }
    let header = text.len() as u64;
    let length = file.metadata()?.len().max(header);
    let mut num_bytes = first_bytes;
    let lines = loop {
        let start = length.saturating_sub(num_bytes).max(header);
        let mut bytes = vec![0; usize::try_from(length - start).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, start)?;
        let lines = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
        if start == header {
            break lines;
        }
        let whole = lines.split_once('\n').map_or("", |(_, whole)| whole);
        let first = whole
            .lines()
            .next()
            .and_then(|line| serde_json::from_str::<Line>(line).ok());
        if first.is_some_and(|first| first.step <= from) {
            break whole.to_owned();
        }
        num_bytes = num_bytes.saturating_mul(4);
    };
    text += &lines;
    let parsed = audit::File::parse(generation, &text);
    let mut parsed = parsed.map_err(|finding| damaged(finding.to_string()))?;
    if let Some(file) = &mut parsed {
        file.lines.retain(|line| line.step >= from);
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::ledger::{Chain, Header, LedgerIdentity};
    use roundhouse_elastic::{DataSchedule, Head, Scaling, TrainingPosition};

    use super::*;

    #[test]
    fn last_lines_are_read_with_any_chunk_size() {
        let data_schedule = DataSchedule::of_steps(1_000, 10, 100);
        let identity = LedgerIdentity::of(&data_schedule, 7);
        let mut chain = Chain::from(Head::start(&identity));
        let mut position: TrainingPosition = Scaling::new(None, &data_schedule).start();
        for _ in 0..40 {
            let batch = data_schedule.batch_at(&position).unwrap();
            position = position.after(batch.num_samples());
            chain.push(chain.head().next(&batch, 3, 0.5));
        }
        let header = Header {
            generation: 3,
            previous: None,
            identity,
            start: None,
        };
        let mut text = header.to_text();
        text.extend(chain.lines().iter().map(Line::to_text));
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        std::fs::create_dir_all(directory.ledger()).unwrap();
        let path = directory.ledger().join(ledger::file_name(3));
        for cut_off in ["", "{\"step\":41,"] {
            std::fs::write(&path, format!("{text}{cut_off}")).unwrap();
            for from in [0, 1, 2, 17, 40, 41] {
                for first_bytes in [1, 64, 300, 4_096, 1 << 20] {
                    let found = read_from_end(&directory, 3, from, first_bytes)
                        .unwrap()
                        .unwrap();
                    assert_eq!(found.header, header);
                    let expected = chain.lines().iter().filter(|line| line.step >= from);
                    assert!(found.lines.iter().eq(expected), "{from} {first_bytes}");
                }
            }
        }
        std::fs::write(&path, &text[..20]).unwrap();
        assert_eq!(read(&directory, 3, 0).unwrap(), None);
        std::fs::write(&path, format!("{text}damage\n")).unwrap();
        assert!(is_unreadable(&read(&directory, 3, 0).unwrap_err()));
        assert!(is_unreadable(&read(&directory, 4, 0).unwrap_err()));
    }
}
