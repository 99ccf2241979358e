//! How samples are cut from token files and texts.

use serde::{Deserialize, Serialize};

use super::{DataFormat, no_climbing};
use crate::trainer::{ConfigInvalid, invalid};

/// Longest context in tokens.
const MAX_CONTEXT: u32 = 1_048_576;

/// Type of a token in a `.bin` file, little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// 16 bits: for vocabularies of up to 65,536.
    #[default]
    U16,
    /// 32 bits: for larger vocabularies.
    U32,
}

impl TokenType {
    /// Size of a token in bytes.
    #[must_use]
    pub const fn num_bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// How samples are cut from token files and texts: sample i has the tokens from i·T to i·T + T; the
/// last T are the targets of the first T.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenOptions {
    /// Number of tokens in a sample, T.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_048_576)))]
    pub context: u32,
    /// `tokens`: type of a token in the files.
    #[serde(default)]
    pub dtype: TokenType,
    /// `text`: the Hugging Face `tokenizer.json`, below `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 1024)))]
    pub tokenizer: Option<String>,
    /// `text`: the token between documents. Default: the tokenizer's `<|endoftext|>`, `</s>`,
    /// `<eos>` or `<|end_of_text|>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 256)))]
    pub end_of_text: Option<String>,
    /// `parquet`: name of the column with lists of tokens. Default: `input_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 256)))]
    pub column: Option<String>,
    /// Tokens are from 0 to below this number. Default: the tokenizer's vocabulary, or else the
    /// model's, for `bert` without its mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schemars",
        schemars(range(min = 1, max = 2_147_483_648_u64))
    )]
    pub vocabulary: Option<u32>,
}

impl TokenOptions {
    pub(super) fn validate(&self, format: DataFormat) -> Result<(), ConfigInvalid> {
        if !(1..=MAX_CONTEXT).contains(&self.context) {
            return invalid(
                "data.tokens.context",
                format!("must be between 1 and {MAX_CONTEXT}"),
            );
        }
        no_climbing("data.tokens.tokenizer", self.tokenizer.as_deref())?;
        let is_text = format == DataFormat::Text;
        match (&self.tokenizer, is_text) {
            (None, true) => {
                return invalid("data.tokens.tokenizer", "name the tokenizer.json file");
            }
            (Some(_), false) => {
                return invalid(
                    "data.tokens.tokenizer",
                    "remove it: only format text has a tokenizer",
                );
            }
            (Some(_), true) | (None, false) => {}
        }
        if self.vocabulary == Some(0) {
            return invalid("data.tokens.vocabulary", "must be at least 1");
        }
        Ok(())
    }
}
