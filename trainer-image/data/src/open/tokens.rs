//! Opens data sets of tokens.

use std::path::Path;
use std::sync::Arc;

use roundhouse_contract::trainer::data::{DataFormat, TokenOptions};

use super::Opener;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::files::{Found, find};
#[cfg(feature = "parquet")]
use crate::format::parquet::TokenLists;
#[cfg(feature = "text")]
use crate::format::text::TextTokenizer;
use crate::format::tokens::{TokenFiles, Tokens, Windows};
use crate::left_out::LeftOut;

impl Opener<'_> {
    /// Returns the tokens of a split, cut into samples.
    pub(super) fn tokens(
        &self,
        path: &Path,
        options: &TokenOptions,
    ) -> Result<Arc<dyn Dataset>, DataError> {
        let mut vocabulary = options.vocabulary.or(self.vocabulary);
        let (tokens, left_out): (Box<dyn Tokens>, LeftOut) = match self.data.format {
            DataFormat::Tokens => {
                let Found { paths, left_out } = find(path, &[".bin"])?;
                let tokens = TokenFiles::open(paths, options.dtype)?;
                (Box::new(tokens), left_out)
            }
            #[cfg(feature = "text")]
            DataFormat::Text => {
                let tokenizer = self.tokenizer(options)?;
                vocabulary = Some(tokenizer.vocabulary());
                let Found { paths, left_out } = find(path, &[".txt"])?;
                let tokens = tokenizer.tokens_of(&paths, &self.cache)?;
                (Box::new(tokens), left_out)
            }
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => {
                let column = options.column.as_deref().unwrap_or("input_ids");
                let Found { paths, left_out } = find(path, &[".parquet"])?;
                let tokens = TokenLists::open(&paths, column, &self.cache)?;
                (Box::new(tokens), left_out)
            }
            #[cfg(not(feature = "text"))]
            DataFormat::Text => {
                let _ = &mut vocabulary;
                return Err(DataError::not_built_in("Text"));
            }
            #[cfg(not(feature = "parquet"))]
            DataFormat::Parquet => return Err(DataError::not_built_in("Parquet")),
            DataFormat::Idx
            | DataFormat::ImageFolder
            | DataFormat::WebDataset
            | DataFormat::TfRecord
            | DataFormat::Custom => {
                let reason = format!("{:?} has no tokens", self.data.format);
                return Err(DataError::config("data.format", reason));
            }
        };
        let windows = Windows::new(path, tokens, options.context, vocabulary)?;
        Ok(Arc::new(windows.beside(left_out)))
    }

    #[cfg(feature = "text")]
    fn tokenizer(&self, options: &TokenOptions) -> Result<TextTokenizer, DataError> {
        let name = options.tokenizer.as_deref().unwrap_or("tokenizer.json");
        let end = options.end_of_text.as_deref();
        TextTokenizer::open(&self.root.join(name), end, options.vocabulary)
    }
}
