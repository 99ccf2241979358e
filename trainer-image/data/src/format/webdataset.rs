//! `WebDataset`: tar files in which consecutive members with the same name up to the first dot form
//! a sample. The image is `.jpg`, `.jpeg` or `.png`; the label is a number in `.cls`, or `label` or
//! `cls` in `.json`. Nothing is extracted, so names of members never become paths.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::shards::{MAX_RECORD_BYTES, NO_LABEL, Shard, Spans};
use crate::error::DataError;

/// Maximum size in bytes of a label member.
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// Reader of the `WebDataset` format.
#[derive(Clone, Copy, Debug)]
pub struct WebDataset;

/// The sample whose members are being read.
#[derive(Default)]
struct Sample {
    key: Vec<u8>,
    image: Option<(u64, u32)>,
    label: Option<i64>,
    /// Name of the sample's first member.
    first: String,
}

impl Sample {
    /// A sample without an image is something else, such as a text or an image of another format.
    /// It is left out.
    fn finish(self, spans: &mut Spans) {
        if let Some((offset, length)) = self.image {
            spans.push(offset, length, self.label.unwrap_or(NO_LABEL));
        } else if !self.first.is_empty() {
            spans.left_out.add(self.first);
        }
    }
}

impl Shard for WebDataset {
    fn kind(&self) -> &'static str {
        "tar-index"
    }

    fn endings(&self) -> &'static [&'static str] {
        &[".tar"]
    }

    fn index(&self, path: &Path) -> Result<Spans, DataError> {
        let file = File::open(path).map_err(DataError::io(path))?;
        let num_bytes = file.metadata().map_err(DataError::io(path))?.len();
        let refuse = |error: std::io::Error| {
            DataError::invalid(
                path,
                format!("the tar file is truncated or corrupt: {error}"),
            )
        };
        let mut archive = tar::Archive::new(BufReader::new(file));
        let mut spans = Spans::default();
        let mut sample = Sample::default();
        let mut end = 0;
        for entry in archive.entries_with_seek().map_err(refuse)? {
            let mut entry = entry.map_err(refuse)?;
            let (offset, size) = (entry.raw_file_position(), entry.size());
            end = offset.saturating_add(size);
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let name = entry.path_bytes().into_owned();
            let Some((key, ending)) = split(&name) else {
                continue;
            };
            if key != sample.key {
                let next = Sample {
                    key: key.to_vec(),
                    first: String::from_utf8_lossy(&name).into_owned(),
                    ..Sample::default()
                };
                std::mem::replace(&mut sample, next).finish(&mut spans);
            }
            match ending.to_ascii_lowercase().as_slice() {
                b"jpg" | b"jpeg" | b"png" if size <= MAX_RECORD_BYTES => {
                    sample.image = u32::try_from(size).ok().map(|length| (offset, length));
                }
                kind @ (b"cls" | b"json") if end <= num_bytes => {
                    let mut text = String::new();
                    let read = entry
                        .by_ref()
                        .take(MAX_LABEL_BYTES)
                        .read_to_string(&mut text);
                    // Text that is not UTF-8 is not a label.
                    let found = read.ok().and_then(|_| label(kind, &text));
                    sample.label = found.or(sample.label);
                }
                _ => {}
            }
        }
        sample.finish(&mut spans);
        // Data of the last member may be missing. Then its sample is corrupt, which is found when
        // it is read.
        let cut = end.saturating_sub(num_bytes);
        if cut > MAX_RECORD_BYTES {
            return Err(DataError::invalid(
                path,
                format!("the tar file is truncated: {cut} bytes are missing"),
            ));
        }
        Ok(spans)
    }

    fn open(&self, _: &mut Vec<u8>, label: i64) -> Result<i64, String> {
        if label == NO_LABEL {
            return Err(
                "the sample has no label: neither a number in .cls nor label in .json".to_owned(),
            );
        }
        Ok(label)
    }
}

/// Splits a member's name into key and ending at the first dot after the last slash.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let base = name
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    let dot = base + name[base..].iter().position(|byte| *byte == b'.')?;
    (dot > base).then(|| (&name[..dot], &name[dot + 1..]))
}

fn label(kind: &[u8], text: &str) -> Option<i64> {
    if kind == b"cls" {
        return text.trim().parse().ok();
    }
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    value.get("label").or_else(|| value.get("cls"))?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::format::shards::Shards;
    use crate::format::testing;
    use crate::image::{Record, Records};

    fn open(
        members: &[(&str, &[u8])],
    ) -> Result<(tempfile::TempDir, Shards<WebDataset>), DataError> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a-0000.tar"), testing::tar(members)).unwrap();
        let shards = Shards::open(WebDataset, directory.path(), &Cache::default())?;
        Ok((directory, shards))
    }

    fn labels(shards: &Shards<WebDataset>) -> Vec<Result<i64, String>> {
        let read = |number| match shards.read(number, &mut Vec::new()) {
            Ok(Record::Encoded { label } | Record::Raw { label, .. }) => Ok(label),
            Err(error) => Err(error.to_string()),
        };
        (0..shards.num_records()).map(read).collect()
    }

    #[test]
    fn members_with_the_same_key_form_a_sample() {
        let long = format!("{}/x.jpg", "d".repeat(150));
        let (_directory, shards) = open(&[
            ("a/1.jpg", b"one"),
            ("a/1.cls", b"3\n"),
            ("a/2.json", br#"{"label": 1}"#),
            ("a/2.PNG", b"two"),
            ("b/2.jpeg", b"three"),
            ("b/2.caption.txt", b"text"),
            ("b/2.cls", b"0"),
            ("text.txt", b"no image"),
            (&long, b"a name that needs a header of its own"),
            (&long.replace(".jpg", ".cls"), b"2"),
        ])
        .unwrap();
        assert_eq!(labels(&shards), [Ok(3), Ok(1), Ok(0), Ok(2)]);
        assert_eq!(shards.num_classes(), 4);
        let mut bytes = Vec::new();
        shards.read(2, &mut bytes).unwrap();
        assert_eq!(bytes, b"three");
    }

    #[test]
    fn sample_without_a_label_is_corrupt_with_its_offset() {
        let (_directory, shards) =
            open(&[("1.jpg", b"one"), ("2.jpg", b"two"), ("2.cls", b"1")]).unwrap();
        let found = labels(&shards);
        let text = found[0].clone().unwrap_err();
        assert!(
            text.contains("a-0000.tar at byte 512") && text.contains("no label"),
            "{text}"
        );
        assert_eq!(found[1], Ok(1));
    }

    #[test]
    fn truncated_shard_loses_only_its_last_sample() {
        let directory = tempfile::tempdir().unwrap();
        let whole = testing::tar(&[
            ("1.cls", b"1"),
            ("1.jpg", b"one"),
            ("2.cls", b"1"),
            ("2.jpg", &[7; 5_000]),
        ]);
        std::fs::write(
            directory.path().join("a.tar"),
            &whole[..whole.len() - 4_000],
        )
        .unwrap();
        let shards = Shards::open(WebDataset, directory.path(), &Cache::default()).unwrap();
        let found = labels(&shards);
        assert_eq!(found[0], Ok(1));
        assert!(
            found[1].clone().unwrap_err().contains("the file ends"),
            "{found:?}"
        );
    }

    #[test]
    fn oversized_member_allocates_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_path("1.jpg").unwrap();
        header.set_size(700 << 20);
        header.set_cksum();
        std::fs::write(directory.path().join("a.tar"), header.as_bytes()).unwrap();
        let shards = Shards::open(WebDataset, directory.path(), &Cache::default()).unwrap();
        let mut bytes = Vec::new();
        let error = shards.read(0, &mut bytes).unwrap_err().to_string();
        assert!(error.contains("the file ends within"), "{error}");
        assert_eq!(bytes.capacity(), 0);
    }

    #[test]
    fn invalid_tar_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.tar"), [9; 2_000]).unwrap();
        let text = Shards::open(WebDataset, directory.path(), &Cache::default())
            .unwrap_err()
            .to_string();
        assert!(text.contains("a.tar") && text.contains("corrupt"), "{text}");
        std::fs::write(directory.path().join("a.tar"), testing::tar(&[])).unwrap();
        let text = Shards::open(WebDataset, directory.path(), &Cache::default())
            .unwrap_err()
            .to_string();
        assert!(text.contains("no sample"), "{text}");
    }
}
