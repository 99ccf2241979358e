//! What the values of enums mean. The schema of the `CustomResourceDefinition` has only the values; the schemas of the
//! Rust types have the doc comment of each variant.

use roundhouse_api::TrainingJobSpec;
use serde_json::Value;

/// The enums of a TrainingJob's spec: values and their meanings.
pub(crate) struct Meanings(Vec<Vec<(String, String)>>);

impl Meanings {
    pub(crate) fn read() -> Result<Self, serde_json::Error> {
        let schema = serde_json::to_value(schemars::schema_for!(TrainingJobSpec))?;
        let definitions = schema["$defs"].as_object().into_iter().flatten();
        let enums = definitions.filter_map(|(_, definition)| variants(definition));
        Ok(Self(enums.collect()))
    }

    /// Value and meaning of each, in the order of the enum; nothing for values that no enum has.
    pub(crate) fn of(&self, values: &[&str]) -> impl Iterator<Item = (&str, &str)> {
        let is_it = |variants: &&Vec<(String, String)>| {
            let has = |value: &&str| variants.iter().any(|(known, _)| known == *value);
            variants.len() == values.len() && values.iter().all(has)
        };
        let variants = self.0.iter().find(is_it).into_iter().flatten();
        variants.map(|(value, meaning)| (value.as_str(), meaning.as_str()))
    }
}

/// Value and meaning of each variant, if it is an enum of words and each has a meaning.
fn variants(definition: &Value) -> Option<Vec<(String, String)>> {
    let variants = definition["oneOf"].as_array()?.iter();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let variants = variants.map(|it| Some((text(&it["const"])?, text(&it["description"])?)));
    variants.collect()
}
