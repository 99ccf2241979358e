//! A sequence of tokens that is cut into samples. Sample i has the tokens from i·T to i·T + T, so
//! consecutive samples share one token: the last target of one is the first input of the next.

use std::path::{Path, PathBuf};

use roundhouse_contract::trainer::data::TokenType;

use crate::dataset::{Dataset, Item, Scratch};
use crate::error::{DataError, Place};
use crate::files::Files;
use crate::left_out::{LeftOut, counted};

/// The tokens of some files, by file and position.
pub trait Tokens: std::fmt::Debug + Send + Sync {
    /// Number of tokens of each file.
    fn num_tokens(&self) -> &[u64];

    /// Returns the path of a file.
    fn path(&self, file: usize) -> &Path;

    /// Reads tokens of a file from a position into a buffer of 32-bit numbers in native byte order.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    fn read(
        &self,
        file: usize,
        start: u64,
        scratch: &mut Vec<u8>,
        into: &mut [u8],
    ) -> Result<(), DataError>;

    /// Returns the place of a token in its file.
    fn place(&self, token: u64) -> Place;

    /// Number of consecutive tokens that are best read together; 1 if it does not matter.
    fn tokens_per_block(&self) -> u64 {
        1
    }
}

/// Samples of T + 1 tokens, of the files one after the other. No sample crosses the end of a file,
/// and up to T tokens at the end of each file are left out.
#[derive(Debug)]
pub struct Windows {
    tokens: Box<dyn Tokens>,
    /// Number of the first sample of each file, and the number of samples at the end.
    starts: Vec<u64>,
    item: Item,
    context: u32,
    vocabulary: Option<u32>,
    left_out: LeftOut,
}

impl Windows {
    /// Cuts the tokens of some files below `path`. Tokens from `vocabulary` on are corrupt.
    ///
    /// # Errors
    /// Returns an error if no file has T + 1 tokens.
    pub fn new(
        path: &Path,
        tokens: Box<dyn Tokens>,
        context: u32,
        vocabulary: Option<u32>,
    ) -> Result<Self, DataError> {
        let mut starts = vec![0];
        for num_tokens in tokens.num_tokens() {
            let num_samples = num_tokens.saturating_sub(1) / u64::from(context.max(1));
            starts.push(starts.last().unwrap_or(&0) + num_samples);
        }
        if starts.last() == Some(&0) {
            let reason = format!(
                "holds no sample: one needs {} tokens",
                u64::from(context) + 1
            );
            return Err(DataError::invalid(path, reason));
        }
        Ok(Self {
            tokens,
            starts,
            item: Item::Tokens { context },
            context,
            vocabulary,
            left_out: LeftOut::default(),
        })
    }

    /// Adds the names of other files beside those of the tokens.
    #[must_use]
    pub fn beside(self, left_out: LeftOut) -> Self {
        Self { left_out, ..self }
    }
}

impl Dataset for Windows {
    fn num_samples(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn describe(&self) -> String {
        let per_file = self.tokens.num_tokens();
        let samples = counted(self.num_samples(), "sample", "samples");
        let tokens = counted(per_file.iter().sum(), "token", "tokens");
        let files = counted(per_file.len() as u64, "file", "files");
        let (context, left_out) = (self.context, self.left_out.files());
        format!("{samples} of {context} tokens, from {tokens} in {files}{left_out}")
    }

    fn item(&self) -> &Item {
        &self.item
    }

    fn num_classes(&self) -> Option<u32> {
        self.vocabulary
    }

    fn read(
        &self,
        sample: u64,
        _: u64,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError> {
        let file = self
            .starts
            .partition_point(|start| *start <= sample)
            .saturating_sub(1);
        if file >= self.tokens.num_tokens().len() {
            return Err(DataError::NoSuchSample {
                sample,
                num_samples: self.num_samples(),
            });
        }
        let start = (sample - self.starts[file]) * u64::from(self.context);
        self.tokens.read(file, start, &mut scratch.record, into)?;
        if let Some(vocabulary) = self.vocabulary {
            let tokens = into
                .as_chunks::<4>()
                .0
                .iter()
                .map(|token| u32::from_ne_bytes(*token));
            if let Some((at, token)) = tokens.enumerate().find(|(_, token)| *token >= vocabulary) {
                let highest = vocabulary.saturating_sub(1);
                let reason =
                    format!("token {token} is out of range; the vocabulary is 0 to {highest}");
                let place = self.tokens.place(start + at as u64);
                return Err(DataError::corrupt(self.tokens.path(file), place, reason));
            }
        }
        Ok(0)
    }

    fn samples_per_block(&self) -> u64 {
        (self.tokens.tokens_per_block() / u64::from(self.context.max(1))).max(1)
    }
}

/// Files of tokens without a header, little-endian.
#[derive(Debug)]
pub struct TokenFiles {
    files: Files,
    kind: TokenType,
    num_tokens: Vec<u64>,
}

impl TokenFiles {
    /// Opens files. Only some of them are open at a time.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if its size is not a multiple
    /// of a token's size.
    pub fn open(paths: Vec<PathBuf>, kind: TokenType) -> Result<Self, DataError> {
        let size = kind.num_bytes() as u64;
        let num_tokens = |path: &PathBuf| {
            let num_bytes = std::fs::metadata(path).map_err(DataError::io(path))?.len();
            if !num_bytes.is_multiple_of(size) {
                let reason = format!(
                    "is truncated, or has another dtype: {num_bytes} bytes are not a multiple of {size}"
                );
                return Err(DataError::invalid(path, reason));
            }
            Ok(num_bytes / size)
        };
        Ok(Self {
            num_tokens: paths.iter().map(num_tokens).collect::<Result<_, _>>()?,
            files: Files::new(paths),
            kind,
        })
    }
}

impl Tokens for TokenFiles {
    fn num_tokens(&self) -> &[u64] {
        &self.num_tokens
    }

    fn path(&self, file: usize) -> &Path {
        self.files.path(file)
    }

    fn read(
        &self,
        file: usize,
        start: u64,
        scratch: &mut Vec<u8>,
        into: &mut [u8],
    ) -> Result<(), DataError> {
        let size = self.kind.num_bytes();
        scratch.resize(into.len() / 4 * size, 0);
        self.files.read_at(file, start * size as u64, scratch)?;
        let tokens = into.as_chunks_mut::<4>().0;
        match self.kind {
            TokenType::U16 => {
                for (token, bytes) in tokens.iter_mut().zip(scratch.as_chunks::<2>().0) {
                    *token = u32::from(u16::from_le_bytes(*bytes)).to_ne_bytes();
                }
            }
            TokenType::U32 => {
                for (token, bytes) in tokens.iter_mut().zip(scratch.as_chunks::<4>().0) {
                    *token = u32::from_le_bytes(*bytes).to_ne_bytes();
                }
            }
        }
        Ok(())
    }

    fn place(&self, token: u64) -> Place {
        Place::Byte(token * self.kind.num_bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::HostBatch;

    fn windows(
        kind: TokenType,
        files: &[&[u32]],
        context: u32,
    ) -> Result<(tempfile::TempDir, Windows), DataError> {
        let directory = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for (number, tokens) in files.iter().enumerate() {
            let path = directory.path().join(format!("{number}.bin"));
            let bytes: Vec<u8> = match kind {
                TokenType::U16 => tokens
                    .iter()
                    .flat_map(|token| u16::try_from(*token).unwrap().to_le_bytes())
                    .collect(),
                TokenType::U32 => tokens
                    .iter()
                    .flat_map(|token| token.to_le_bytes())
                    .collect(),
            };
            std::fs::write(&path, bytes).unwrap();
            paths.push(path);
        }
        let tokens = Box::new(TokenFiles::open(paths, kind)?);
        let windows = Windows::new(directory.path(), tokens, context, Some(100_000))?;
        Ok((directory, windows))
    }

    fn samples(windows: &Windows) -> Vec<Vec<u32>> {
        let read = |sample| HostBatch::read(windows, &[sample], 0).unwrap().tokens();
        (0..windows.num_samples()).map(read).collect()
    }

    #[test]
    fn samples_share_one_token_and_do_not_cross_files() {
        for kind in [TokenType::U16, TokenType::U32] {
            let (_directory, windows) =
                windows(kind, &[&[1, 2, 3, 4, 5, 6], &[7], &[8, 9, 65_535]], 2).unwrap();
            assert_eq!(
                samples(&windows),
                [vec![1, 2, 3], vec![3, 4, 5], vec![8, 9, 65_535]]
            );
        }
    }

    #[test]
    fn only_some_token_files_are_open_at_a_time() {
        let tokens: Vec<[u32; 3]> = (0..200).map(|number| [number, number, number]).collect();
        let files: Vec<&[u32]> = tokens.iter().map(|tokens| &tokens[..]).collect();
        let (directory, windows) = windows(TokenType::U16, &files, 2).unwrap();
        assert_eq!(samples(&windows), tokens);
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        let num_open = open
            .filter(|path| path.starts_with(directory.path()))
            .count();
        assert!((1..=128).contains(&num_open), "{num_open}");
    }

    #[test]
    fn token_outside_the_vocabulary_is_named_with_its_place() {
        let (_directory, windows) = windows(TokenType::U32, &[&[1, 2, 3, 100_000, 5]], 2).unwrap();
        let text = HostBatch::read(&windows, &[1], 0).unwrap_err().to_string();
        assert!(
            text.contains("0.bin at byte 12: token 100000 is out of range"),
            "{text}"
        );
    }

    #[test]
    fn short_file_or_other_token_type_is_named() {
        let text = windows(TokenType::U16, &[&[1, 2]], 2)
            .unwrap_err()
            .to_string();
        assert!(text.contains("needs 3 tokens"), "{text}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.bin");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        let text = TokenFiles::open(vec![path], TokenType::U16)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("x.bin") && text.contains("truncated"),
            "{text}"
        );
    }
}
