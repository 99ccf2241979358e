//! The nodes that a pod's affinity names by a field. Whoever may create pods in one namespace chooses how many terms and names
//! there are, so they are read one after the other, and only a bounded number is kept.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The field of a node's name.
const NAME: &str = "metadata.name";
const NOT_IN: &str = "NotIn";
/// Most names that are kept of a pod. A pod with more is kept from nodes by something else than this operator.
const MAX_NAMES: usize = 256;
/// Longest name of a node.
const MAX_NAME_BYTES: usize = 253;

/// The names that an affinity keeps a pod from.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfNodes {
    node_affinity: Option<Terms>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terms {
    preferred_during_scheduling_ignored_during_execution: Option<Names<Preferred>>,
    required_during_scheduling_ignored_during_execution: Option<Required>,
}

#[derive(Deserialize)]
struct Preferred {
    preference: Option<Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Required {
    node_selector_terms: Option<Names<Term>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    match_fields: Option<Names<Field>>,
}

#[derive(Deserialize)]
struct Field {
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    values: Option<Names<String>>,
}

impl OfNodes {
    /// Nodes that a pod is kept from by their names; none if they are too many.
    pub(super) fn kept_from(self) -> Vec<String> {
        let Some(Terms {
            preferred_during_scheduling_ignored_during_execution: preferred,
            required_during_scheduling_ignored_during_execution: required,
        }) = self.node_affinity
        else {
            return Vec::new();
        };
        let required = required.and_then(|it| it.node_selector_terms);
        let mut names = preferred.map_or_else(Vec::new, |it| it.names);
        names.extend(required.map_or_else(Vec::new, |it| it.names));
        if names.len() > MAX_NAMES {
            return Vec::new();
        }
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// What names nodes.
trait Naming {
    fn names(self) -> Vec<String>;
}

impl Naming for String {
    fn names(self) -> Vec<String> {
        let is_name = self.len() <= MAX_NAME_BYTES;
        Some(self).filter(|_| is_name).into_iter().collect()
    }
}

impl Naming for Field {
    fn names(self) -> Vec<String> {
        let values = self.values.map_or_else(Vec::new, |it| it.names);
        let is_name = self.key == NAME && self.operator == NOT_IN;
        Some(values).filter(|_| is_name).unwrap_or_default()
    }
}

impl Naming for Term {
    fn names(self) -> Vec<String> {
        self.match_fields.map_or_else(Vec::new, |it| it.names)
    }
}

impl Naming for Preferred {
    fn names(self) -> Vec<String> {
        self.preference.map_or_else(Vec::new, Term::names)
    }
}

/// The names of all items of a list, without the list; one more than the most at most, which tells that there are too many.
struct Names<T> {
    names: Vec<String>,
    of: PhantomData<T>,
}

impl<'de, T: Naming + Deserialize<'de>> Deserialize<'de> for Names<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self {
            names: Vec::new(),
            of: PhantomData,
        })
    }
}

impl<'de, T: Naming + Deserialize<'de>> Visitor<'de> for Names<T> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Self, A::Error> {
        while self.names.len() <= MAX_NAMES {
            let Some(item) = seq.next_element::<T>()? else {
                return Ok(self);
            };
            self.names.extend(item.names());
            self.names.truncate(MAX_NAMES + 1);
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(affinity: &Value) -> Vec<String> {
        let read: OfNodes = serde_json::from_str(&affinity.to_string()).unwrap();
        read.kept_from()
    }

    fn names(number: usize) -> Value {
        let names: Vec<String> = (0..number).map(|at| format!("n{at:03}")).collect();
        json!({"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {
                "matchFields": [{"key": NAME, "operator": NOT_IN, "values": names}]}}],
        }})
    }

    #[test]
    fn the_names_of_an_affinity_are_those_of_all_its_terms() {
        let field = |operator: &str, name: &str| json!({"key": NAME, "operator": operator, "values": [name]});
        let affinity = json!({
            "podAffinity": {"a": 1},
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchFields": [field(NOT_IN, "c"), field("In", "x")]}},
                    {"weight": 1, "preference": {"matchExpressions": [field(NOT_IN, "y")]}},
                ],
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {}, {"matchFields": [field(NOT_IN, "a")]}, {"matchFields": [field(NOT_IN, "c")]},
                ]},
            },
        });
        assert_eq!(of(&affinity), ["a", "c"]);
        assert!(of(&json!({"nodeAffinity": null})).is_empty());
    }

    #[test]
    fn of_too_many_names_or_terms_nothing_is_kept() {
        assert_eq!(of(&names(MAX_NAMES)).len(), MAX_NAMES);
        for too_many in [MAX_NAMES + 1, 50_000] {
            assert!(of(&names(too_many)).is_empty());
        }
        let terms = vec![json!({}); 400_000];
        let required = json!({"nodeSelectorTerms": terms});
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        assert!(of(&affinity).is_empty());
    }
}
