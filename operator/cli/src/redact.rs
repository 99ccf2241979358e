//! Leaves secrets out of what a report shows. Secrets themselves are never read; but values of variables, arguments and
//! log lines may be ones. What is doubtful is left out. Pure.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;

/// What stands in place of a secret.
pub(crate) const LEFT_OUT: &str = "<left out>";
/// Shorter values of variables are not looked for elsewhere: they would be found everywhere.
const MIN_VALUE: usize = 6;
/// Variables of ours have no secrets.
const OURS: &str = "ROUNDHOUSE_";

/// Texts that look like secrets; what group 1 matches stays.
const PATTERNS: [&str; 7] = [
    // Private keys.
    r"()-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
    // JSON Web Tokens, such as those of service accounts.
    r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
    // Keys with the prefix of their issuer: GitHub, GitLab, Hugging Face, Slack, OpenAI, AWS, Google.
    r"()\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abeprs]-|sk-|AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}",
    // HTTP.
    r"(?i)(authorization[\x22']?\s*[:=]\s*[\x22']?(?:(?:bearer|basic|token)\s+)?)[^\s\x22',]+",
    r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}",
    // Names of secrets with their value: in logs, in arguments, in documents.
    r"(?i)((?:password|passwd|passphrase|secret|token|credentials?|(?:api|access|private|account)[_-]?key)[\x22']?(?:\s*[:=]\s*|\s+(?:is|was)\s+)[\x22']?)[^\s\x22',;&}]+",
    // User and password in an address.
    r"(://)[^/\s:@]+:[^/\s@]+@",
];

/// Options and keys whose value is a secret.
const NAMES: [&str; 6] = [
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
];

/// What is known of a job's secrets.
#[derive(Debug)]
pub(crate) struct Redactor {
    patterns: Vec<Regex>,
    /// Names of variables that come from a Secret: `NAME=value` is left out everywhere.
    names: Vec<Regex>,
    /// Values of variables, the longest first.
    values: Vec<String>,
}

impl Redactor {
    /// Of the objects that are shown.
    ///
    /// # Errors
    /// A pattern is not one: a defect.
    pub(crate) fn of(objects: &[Value]) -> anyhow::Result<Self> {
        let (mut names, mut values) = (BTreeSet::new(), BTreeSet::new());
        for object in objects {
            learn(object, &mut names, &mut values);
        }
        let patterns = PATTERNS.iter().map(|pattern| Regex::new(pattern));
        let names = names.iter().map(|name| {
            let name = regex::escape(name);
            Regex::new(&format!(
                r"(\b{name}\b[\x22']?\s*[:=]\s*[\x22']?)[^\s\x22',;]+"
            ))
        });
        let mut values: Vec<String> = values.into_iter().collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Ok(Self {
            patterns: patterns.collect::<Result<_, _>>()?,
            names: names.collect::<Result<_, _>>()?,
            values,
        })
    }

    /// A text without what looks like a secret.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            text = text.replace(value, LEFT_OUT);
        }
        for pattern in self.patterns.iter().chain(&self.names) {
            text = pattern
                .replace_all(&text, format!("${{1}}{LEFT_OUT}"))
                .into_owned();
        }
        text
    }

    /// An object without values of variables, and without what looks like a secret.
    pub(crate) fn object(&self, object: &mut Value) {
        match object {
            Value::Object(map) => {
                map.remove("managedFields");
                if map.contains_key("name") && map.get("value").is_some_and(Value::is_string) {
                    let is_ours = map["name"]
                        .as_str()
                        .is_some_and(|name| name.starts_with(OURS));
                    if !is_ours {
                        map.insert("value".to_owned(), LEFT_OUT.into());
                    }
                }
                map.retain(|key, _| key != "kubectl.kubernetes.io/last-applied-configuration");
                for (key, value) in map.iter_mut() {
                    if value.is_string() && is_secret_name(key) {
                        *value = LEFT_OUT.into();
                    }
                    self.object(value);
                }
            }
            Value::Array(items) => {
                let mut hides_next = false;
                for item in items {
                    let option = item.as_str().filter(|it| it.starts_with('-'));
                    let is_option =
                        option.is_some_and(|it| !it.contains('=') && is_secret_name(it));
                    if hides_next && item.is_string() {
                        *item = LEFT_OUT.into();
                    }
                    hides_next = is_option;
                    self.object(item);
                }
            }
            Value::String(text) => *text = self.text(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn is_secret_name(name: &str) -> bool {
    let plain: String = name
        .to_lowercase()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    NAMES.iter().any(|secret| plain.ends_with(secret))
}

/// Names and values of the variables in an object.
fn learn(object: &Value, names: &mut BTreeSet<String>, values: &mut BTreeSet<String>) {
    match object {
        Value::Object(map) => {
            if let Some(name) = map.get("name").and_then(Value::as_str) {
                let source = map.get("valueFrom");
                if source.is_some_and(|source| !source["secretKeyRef"].is_null()) {
                    names.insert(name.to_owned());
                }
                let value = map.get("value").and_then(Value::as_str);
                let value = value.filter(|value| value.len() >= MIN_VALUE && is_secret_name(name));
                values.extend(value.map(str::to_owned));
            }
            map.values().for_each(|value| learn(value, names, values));
        }
        Value::Array(items) => items.iter().for_each(|item| learn(item, names, values)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_left_out_of_a_text() {
        let redactor = Redactor::of(&[]).unwrap();
        for (text, secret) in [
            ("Authorization: Bearer abcdef123456", "abcdef123456"),
            (
                "token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl seen",
                "c2lnbmF0dXJl",
            ),
            ("login with hf_abcdefghijklmnopqrst", "hf_abc"),
            ("wandb: api_key=0123456789abcdef done", "0123456789abcdef"),
            ("{\"password\": \"hunter2\"}", "hunter2"),
            ("the token is deadbeef", "deadbeef"),
            ("s3 AKIAIOSFODNN7EXAMPLE", "AKIAIOSF"),
            ("https://user:pa55@host/x", "pa55"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
                "MIIE",
            ),
        ] {
            let shown = redactor.text(text);
            assert!(
                !shown.contains(secret) && shown.contains(LEFT_OUT),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_explains_a_job_stays() {
        let redactor = Redactor::of(&[]).unwrap();
        for text in [
            "step 4 of 9 (44 %), epoch 0: loss 2.5000, rate 0.1, 9000 tokens/s",
            "roundhouse_train_tokens_per_second{rank=\"0\"} 5",
            "store at 10.0.0.1:29500",
            "data.tokens: {context: 128}",
            "secretKeyRef: {name: wandb, key: key}",
        ] {
            assert_eq!(redactor.text(text), text);
        }
    }

    #[test]
    fn values_of_variables_and_secret_arguments_are_left_out_of_objects_and_logs() {
        let pod = json!({
            "metadata": {"managedFields": [1], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"env\": \"s3cr3t-value\"}"}},
            "spec": {"containers": [{
                "args": ["--lr", "0.1", "--hub-token", "abcabcabc", "--password=xyzxyz"],
                "env": [
                    {"name": "HUB_TOKEN", "value": "s3cr3t-value"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}},
                    {"name": "ROUNDHOUSE_PROCS_PER_WORKER", "value": "2"},
                    {"name": "OTHER", "value": "also hidden"},
                ],
            }]},
        });
        let redactor = Redactor::of(std::slice::from_ref(&pod)).unwrap();
        let mut shown = pod;
        redactor.object(&mut shown);
        let text = shown.to_string();
        for secret in [
            "s3cr3t-value",
            "abcabcabc",
            "xyzxyz",
            "also hidden",
            "managedFields",
        ] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        for kept in [
            "HUB_TOKEN",
            "wandb",
            "ROUNDHOUSE_PROCS_PER_WORKER",
            "\"2\"",
            "0.1",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let log = redactor.text("starts with s3cr3t-value\nKEY=0123456789\nMONKEY=1");
        assert_eq!(
            log,
            format!("starts with {LEFT_OUT}\nKEY={LEFT_OUT}\nMONKEY=1")
        );
    }
}
