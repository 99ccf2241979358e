//! Text files that a Hugging Face tokenizer tokenizes. Each line is a document; documents are
//! joined with the end-of-text token between them. One process of a node tokenizes a file once and
//! stores 32-bit tokens in a file beside it or in the cache directory, so text may be larger than
//! memory.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use roundhouse_contract::trainer::data::TokenType;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use super::tokens::TokenFiles;
use crate::cache::{Cache, hex};
use crate::error::{DataError, Place};

mod kept;

/// Tokens that end a text in common tokenizers.
const ENDS_OF_TEXT: [&str; 4] = ["<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>"];
/// Number of lines that are tokenized at once, in all threads.
const LINES_AT_ONCE: usize = 1_024;
/// Number of bytes after which fewer lines are tokenized at once, so that memory is bounded.
const BYTES_AT_ONCE: usize = 16 << 20;
/// Maximum number of bytes of a line, including its end.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// A tokenizer and the token between documents.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    end_of_text: u32,
    vocabulary: u32,
    /// A hash of everything on which the tokens depend besides the text.
    hash: String,
}

impl std::fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("end_of_text", &self.end_of_text)
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

/// Parses a `tokenizer.json`, or returns why it is not one. The library panics on some truncated
/// files, and on some JSON files that are not tokenizers.
fn parse(bytes: &[u8]) -> Result<Tokenizer, String> {
    serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| error.to_string())?;
    let read = catch_unwind(|| Tokenizer::from_bytes(bytes));
    let read = read.map_err(|_| "the tokenizers library failed on it".to_owned())?;
    read.map_err(|error| error.to_string())
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. `vocabulary` is the vocabulary of the model, if known.
    ///
    /// # Errors
    /// Returns an error if the file is not a tokenizer, if it lacks the end-of-text token, or if it
    /// has more tokens than the model.
    pub fn open(
        path: &Path,
        end_of_text: Option<&str>,
        vocabulary: Option<u32>,
    ) -> Result<Self, DataError> {
        let bytes = std::fs::read(path).map_err(DataError::io(path))?;
        let tokenizer = parse(&bytes).map_err(|reason| {
            DataError::invalid(path, format!("is not a tokenizer.json: {reason}"))
        })?;
        let ends = end_of_text.map_or_else(|| ENDS_OF_TEXT.to_vec(), |end| vec![end]);
        let end_of_text = ends
            .iter()
            .find_map(|end| tokenizer.token_to_id(end))
            .ok_or_else(|| {
                let reason = format!(
                    "{} has no token {}; name one that it has",
                    path.display(),
                    ends.join(" or ")
                );
                DataError::config("data.tokens.endOfText", reason)
            })?;
        let highest = tokenizer
            .get_vocab(true)
            .values()
            .copied()
            .max()
            .unwrap_or(0);
        if let Some(vocabulary) = vocabulary
            && highest >= vocabulary
        {
            let reason = format!(
                "{} has tokens up to {highest}, but the model's vocabulary is {vocabulary}",
                path.display()
            );
            return Err(DataError::config("data.tokens.vocabulary", reason));
        }
        let hash = Sha256::new_with_prefix(&bytes).chain_update(end_of_text.to_le_bytes());
        Ok(Self {
            tokenizer,
            end_of_text,
            vocabulary: vocabulary.unwrap_or(highest + 1),
            hash: hex(&hash.finalize())[..16].to_owned(),
        })
    }

    /// Tokens are from 0 to below this number.
    #[must_use]
    pub const fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// Returns the tokens of texts. A text that has not been tokenized is tokenized now.
    ///
    /// # Errors
    /// Returns an error if a text is not UTF-8, if a line is too long, or if no directory for
    /// the tokens is writable.
    pub fn tokens_of(&self, texts: &[PathBuf], cache: &Cache) -> Result<TokenFiles, DataError> {
        let file = |text: &PathBuf| {
            kept::tokens_of(text, &self.hash, cache, |writer| self.write(text, writer))
        };
        let files = texts.iter().map(file).collect::<Result<_, _>>()?;
        TokenFiles::open(files, TokenType::U32)
    }

    fn write(
        &self,
        path: &Path,
        writer: &mut BufWriter<tempfile::NamedTempFile>,
    ) -> Result<(), DataError> {
        let mut reader =
            BufReader::with_capacity(1 << 20, File::open(path).map_err(DataError::io(path))?);
        let (mut lines, mut num_bytes) = (Vec::new(), 0);
        for number in 1.. {
            let line = next_line(&mut reader, path, number, MAX_LINE_BYTES)?;
            let is_end = line.is_none();
            num_bytes += line.as_ref().map_or(0, String::len);
            lines.extend(line.filter(|line| !line.is_empty()));
            if is_end || lines.len() == LINES_AT_ONCE || num_bytes >= BYTES_AT_ONCE {
                self.append(path, std::mem::take(&mut lines), writer)?;
                num_bytes = 0;
            }
            if is_end {
                break;
            }
        }
        Ok(())
    }

    fn append(
        &self,
        path: &Path,
        lines: Vec<String>,
        writer: &mut impl Write,
    ) -> Result<(), DataError> {
        let encodings = self.tokenizer.encode_batch_fast(lines, false);
        let encodings = encodings
            .map_err(|error| DataError::invalid(path, format!("cannot be tokenized: {error}")))?;
        for encoding in encodings {
            for token in encoding.get_ids().iter().chain([&self.end_of_text]) {
                writer
                    .write_all(&token.to_le_bytes())
                    .map_err(DataError::io(path))?;
            }
        }
        Ok(())
    }
}

/// Returns the next line of a text without its end; `None` after the last one. `number` is the
/// number of the line, from 1.
///
/// # Errors
/// Returns an error if the line with its end has more than `max_bytes` bytes, or if
/// it is not UTF-8.
fn next_line(
    reader: &mut impl BufRead,
    path: &Path,
    number: u64,
    max_bytes: u64,
) -> Result<Option<String>, DataError> {
    let mut bytes = Vec::new();
    // One more byte than allowed shows that a line is too long.
    let num_bytes = std::io::Read::take(reader, max_bytes + 1)
        .read_until(b'\n', &mut bytes)
        .map_err(DataError::io(path))?;
    if num_bytes == 0 {
        return Ok(None);
    }
    let place = Place::Line(number);
    if num_bytes as u64 > max_bytes {
        let reason = format!("the line is longer than {max_bytes} bytes, the most that is read");
        return Err(DataError::corrupt(path, place, reason));
    }
    while bytes
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        bytes.pop();
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| DataError::corrupt(path, place, "the line is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::HostBatch;
    use crate::format::tokens::{Tokens, Windows};

    const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
        {"id": 3, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true}],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}}"#;

    fn case(text: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (tokenizer, file) = (
            directory.path().join("tokenizer.json"),
            directory.path().join("a.txt"),
        );
        std::fs::write(&tokenizer, TOKENIZER).unwrap();
        std::fs::write(&file, text).unwrap();
        (directory, tokenizer, file)
    }

    fn tokens_of(tokenizer: &TextTokenizer, text: &Path) -> Result<TokenFiles, DataError> {
        tokenizer.tokens_of(&[text.to_owned()], &Cache::default())
    }

    fn tokens(tokenizer: &TextTokenizer, text: &Path) -> Vec<u32> {
        let tokens = tokens_of(tokenizer, text).unwrap();
        let context = u32::try_from(tokens.num_tokens()[0] - 1).unwrap();
        let windows = Windows::new(text, Box::new(tokens), context, None).unwrap();
        HostBatch::read(&windows, &[0], 0).unwrap().tokens()
    }

    #[test]
    fn documents_are_joined_with_the_end_of_text_token() {
        let (_directory, tokenizer, file) = case("a b A\n\nb\r\nx <|endoftext|> a");
        let tokenizer = TextTokenizer::open(&tokenizer, None, Some(4)).unwrap();
        let found = tokens(&tokenizer, &file);
        assert_eq!(found, [0, 1, 0, 3, 1, 3, 2, 3, 0, 3]);
    }

    #[test]
    fn text_is_tokenized_once_and_again_after_a_change() {
        let (directory, tokenizer, file) = case("a b");
        let tokenizer = TextTokenizer::open(&tokenizer, None, None).unwrap();
        let count = || std::fs::read_dir(directory.path()).unwrap().count();
        tokens_of(&tokenizer, &file).unwrap();
        assert_eq!(count(), 3);
        tokens_of(&tokenizer, &file).unwrap();
        assert_eq!(count(), 3);
        std::fs::write(&file, "b b b").unwrap();
        let found = tokens(&tokenizer, &file);
        assert_eq!((found, count()), (vec![1, 1, 1, 3], 3));
    }

    #[test]
    fn unsuitable_tokenizer_is_named_with_its_key() {
        let (_directory, tokenizer, file) = case("a");
        let text = TextTokenizer::open(&tokenizer, None, Some(3))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("data.tokens.vocabulary") && text.contains("tokens up to 3"),
            "{text}"
        );
        let text = TextTokenizer::open(&tokenizer, Some("<end>"), None)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("data.tokens.endOfText") && text.contains("<end>"),
            "{text}"
        );
        let text = TextTokenizer::open(&file, None, None)
            .unwrap_err()
            .to_string();
        assert!(text.contains("a.txt: is not a tokenizer.json"), "{text}");
    }

    #[test]
    fn line_above_the_limit_is_an_error_with_its_number() {
        let lines = |text: &str| {
            let mut reader = text.as_bytes();
            let next = |number| next_line(&mut reader, Path::new("a.txt"), number, 6).transpose();
            (1..).map_while(next).collect::<Result<Vec<_>, _>>()
        };
        assert_eq!(lines("12345\n1234\r\n123456").unwrap().len(), 3);
        for too_long in ["123456\n", "12345\r\n", "1234567", "123456789"] {
            let text = lines(&format!("1\n{too_long}")).unwrap_err().to_string();
            assert!(
                text.contains("a.txt at line 2: the line is longer than 6 bytes"),
                "{text}"
            );
        }
    }

    #[test]
    fn non_utf8_text_is_named_with_its_line() {
        let (_directory, tokenizer, file) = case("");
        std::fs::write(&file, b"a\nb\xff\n").unwrap();
        let tokenizer = TextTokenizer::open(&tokenizer, None, None).unwrap();
        let text = tokens_of(&tokenizer, &file).unwrap_err().to_string();
        assert!(
            text.contains("a.txt at line 2: the line is not UTF-8"),
            "{text}"
        );
    }
}
