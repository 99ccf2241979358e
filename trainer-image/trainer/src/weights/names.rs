//! Names that published files use for a tensor.

use std::collections::HashSet;

use crate::parameters::Parameters;

/// Names of a tensor that is used twice: the name that Transformers saves, and the name that it
/// leaves out. Files of other programs may have both, or only the second. A model that has tensors
/// for both names does not tie them.
const TIED: [(&str, &str); 4] = [
    ("transformer.wte.weight", "lm_head.weight"),
    (
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight",
    ),
    ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ("model.embed_tokens.weight", "lm_head.weight"),
];

/// Prefixes that are missing in the file of a model without its head.
const PREFIXES: [&str; 3] = ["transformer.", "bert.", "model."];

/// Suffixes of the names of constants that some files have beside the weights.
const CONSTANTS: [&str; 5] = [
    ".num_batches_tracked",
    ".attn.bias",
    ".attn.masked_bias",
    "embeddings.position_ids",
    ".rotary_emb.inv_freq",
];

/// Names under which a file may have a tensor of a model, the usual name first.
pub(super) fn candidates(parameters: &Parameters, name: &str) -> Vec<String> {
    let is_another = |other: &str| parameters.iter().any(|(name, _)| name == other);
    let mut candidates = vec![name.to_owned()];
    candidates.extend(
        PREFIXES
            .iter()
            .filter_map(|prefix| name.strip_prefix(prefix))
            .map(str::to_owned),
    );
    let tied = TIED
        .iter()
        .filter(|(saved, other)| *saved == name && !is_another(other));
    candidates.extend(tied.map(|(_, other)| (*other).to_owned()));
    // The first published files of BERT were converted from TensorFlow.
    for index in 0..candidates.len() {
        for (end, old) in [
            ("LayerNorm.weight", "LayerNorm.gamma"),
            ("LayerNorm.bias", "LayerNorm.beta"),
        ] {
            if let Some(start) = candidates[index].strip_suffix(end) {
                candidates.push(format!("{start}{old}"));
            }
        }
    }
    candidates
}

/// The names in a file that refer to tensors of the model.
pub(super) struct Known(HashSet<String>);

impl Known {
    pub(super) fn of(parameters: &Parameters) -> Self {
        Self(
            parameters
                .iter()
                .flat_map(|(name, _)| candidates(parameters, name))
                .collect(),
        )
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains(name) || CONSTANTS.iter().any(|end| name.ends_with(end))
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;
    use crate::parameters::Role;

    #[test]
    fn tensor_is_found_by_short_tied_and_old_names() {
        let cases: [(&str, &[&str]); 4] = [
            ("layer1.0.conv1.weight", &["layer1.0.conv1.weight"]),
            (
                "transformer.wte.weight",
                &["transformer.wte.weight", "wte.weight", "lm_head.weight"],
            ),
            (
                "cls.predictions.bias",
                &["cls.predictions.bias", "cls.predictions.decoder.bias"],
            ),
            (
                "bert.embeddings.LayerNorm.bias",
                &[
                    "bert.embeddings.LayerNorm.bias",
                    "embeddings.LayerNorm.bias",
                    "bert.embeddings.LayerNorm.beta",
                    "embeddings.LayerNorm.beta",
                ],
            ),
        ];
        for (name, expected) in cases {
            assert_eq!(candidates(&Parameters::default(), name), expected);
        }
    }

    #[test]
    fn head_of_its_own_is_not_an_embedding() {
        let mut parameters = Parameters::default();
        let embedding = "model.embed_tokens.weight";
        let short = "embed_tokens.weight";
        let tied = candidates(&parameters, embedding);
        assert_eq!(tied, [embedding, short, "lm_head.weight"]);
        let value = Tensor::zeros([2, 2], tch::kind::FLOAT_CPU);
        parameters
            .push("lm_head.weight", Role::Weight, &value)
            .unwrap();
        assert_eq!(candidates(&parameters, embedding), [embedding, short]);
    }
}
