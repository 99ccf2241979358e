//! The policy file: YAML, with the keys of the chart's value `policy`.

use std::collections::BTreeMap;

use roundhouse_planner::tenancy::{Limits, OfNamespaces, Policy};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

const NAMESPACES: &str = "namespaces";
const SELECTOR: &str = "selector";

/// Reads a policy. An error names the key.
pub(super) fn parse(text: &str) -> Result<Policy, String> {
    let whole: Option<Map<String, Value>> =
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let mut whole = whole.unwrap_or_default();
    let entries = whole.remove(NAMESPACES).unwrap_or(json!([]));
    let entries: Vec<Map<String, Value>> = typed(entries, NAMESPACES)?;
    let default = typed(Value::Object(whole.clone()), "")?;
    let mut namespaces = Vec::new();
    for (at, mut entry) in entries.into_iter().enumerate() {
        let key = format!("{NAMESPACES}[{at}]");
        let selector: BTreeMap<String, String> = match entry.remove(SELECTOR) {
            Some(selector) => typed(selector, &format!("{key}.{SELECTOR}"))?,
            None => BTreeMap::new(),
        };
        if selector.is_empty() {
            return Err(format!(
                "{key}.{SELECTOR}: give labels of the namespaces, such as {{kubernetes.io/metadata.name: team-a}}"
            ));
        }
        // The entry is parsed alone first, so that an error has its place in the file.
        let _: Limits = typed(Value::Object(entry.clone()), &key)?;
        let limits = typed(Value::Object(over(&whole, entry)), &key)?;
        namespaces.push(OfNamespaces { selector, limits });
    }
    Ok(Policy {
        default,
        namespaces,
    })
}

/// Merges two levels of values: `above` wins. The same applies below `allow`.
fn over(below: &Map<String, Value>, above: Map<String, Value>) -> Map<String, Value> {
    let mut all = below.clone();
    for (key, value) in above {
        let value = match (all.remove(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => {
                Value::Object(over(&below, above))
            }
            (_, value) => value,
        };
        all.insert(key, value);
    }
    all
}

fn typed<T: DeserializeOwned>(value: Value, at: &str) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let keys = [at, &path]
            .into_iter()
            .filter(|key| !matches!(*key, "" | "."));
        let keys: Vec<&str> = keys.collect();
        if keys.is_empty() {
            error.inner().to_string()
        } else {
            format!("{}: {}", keys.join("."), error.inner())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_policy_file_allows_nothing() {
        for text in ["", "{}\n", "# nothing\n", "namespaces: []"] {
            assert_eq!(parse(text), Ok(Policy::default()), "{text:?}");
        }
    }

    #[test]
    fn namespace_entry_overrides_only_its_own_keys() {
        let text = "
maxWorkersPerJob: 8
allow:
  hostPaths: [/data/*]
  capabilities: [IPC_LOCK]
namespaces:
- selector: {team: vision}
  maxWorkersPerJob: 64
  allow: {hostPaths: []}
- selector: {team: speech}
";
        let policy = parse(text).unwrap();
        let [vision, speech] = policy.namespaces.as_slice() else {
            panic!("{policy:?}")
        };
        assert_eq!(vision.limits.max_workers_per_job, 64);
        assert!(vision.limits.allow.host_paths.is_empty());
        assert_eq!(vision.limits.allow.capabilities, ["IPC_LOCK"]);
        assert_eq!(speech.limits, policy.default);
        assert_eq!(vision.selector["team"], "vision");
    }

    #[test]
    fn wrong_policy_key_is_named() {
        let cases = [
            ("allow: {hostPath: [/data]}", "allow"),
            ("allow: {hostPath: [/data]}", "`hostPath`"),
            ("allow: {privileged: [yes]}", "allow.privileged: "),
            ("allow: {hostPorts: [a]}", "allow.hostPorts[0]: "),
            ("maxWorkersPerJob: -1", "maxWorkersPerJob: "),
            ("maxWorker: 1", "`maxWorker`"),
            ("namespaces: {a: b}", "namespaces: "),
            ("namespaces: [{allow: {}}]", "namespaces[0].selector: "),
            (
                "namespaces: [{selector: {a: [b]}}]",
                "namespaces[0].selector.a: ",
            ),
            (
                "namespaces: [{selector: {a: b}, allow: {root: 3}}]",
                "namespaces[0].allow.root: ",
            ),
            ("- a", "expected mapping"),
        ];
        for (text, words) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
