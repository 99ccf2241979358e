//! From the configuration to data sets of tokens.

use std::path::Path;
use std::sync::Arc;

use roundhouse_contract::trainer::data::{DataFormat, TokenOptions};

use super::Opener;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::files::find;
#[cfg(feature = "parquet")]
use crate::format::parquet::TokenLists;
#[cfg(feature = "text")]
use crate::format::text::TextTokenizer;
use crate::format::tokens::{TokenFiles, Tokens, Windows};

impl Opener<'_> {
    /// The tokens of a split, cut into samples.
    pub(super) fn tokens(
        &self,
        path: &Path,
        options: &TokenOptions,
    ) -> Result<Arc<dyn Dataset>, DataError> {
        let mut vocabulary = options.vocabulary.or(self.vocabulary);
        let tokens: Box<dyn Tokens> = match self.data.format {
            DataFormat::Tokens => {
                let paths = find(path, &[".bin"])?;
                Box::new(TokenFiles::open(paths, options.dtype)?)
            }
            #[cfg(feature = "text")]
            DataFormat::Text => {
                let tokenizer = self.tokenizer(options)?;
                vocabulary = Some(tokenizer.vocabulary());
                let texts = find(path, &[".txt"])?;
                Box::new(tokenizer.tokens_of(&texts, &self.cache)?)
            }
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => {
                let column = options.column.as_deref().unwrap_or("input_ids");
                let paths = find(path, &[".parquet"])?;
                Box::new(TokenLists::open(&paths, column, &self.cache)?)
            }
            other => {
                let _ = &mut vocabulary;
                return Err(DataError::config(
                    "data.format",
                    format!("{other:?} was not built in, or has no tokens"),
                ));
            }
        };
        let windows = Windows::new(path, tokens, options.context, vocabulary)?;
        Ok(Arc::new(windows))
    }

    #[cfg(feature = "text")]
    fn tokenizer(&self, options: &TokenOptions) -> Result<TextTokenizer, DataError> {
        let name = options.tokenizer.as_deref().unwrap_or("tokenizer.json");
        let end = options.end_of_text.as_deref();
        TextTokenizer::open(&self.root.join(name), end, options.vocabulary)
    }
}
