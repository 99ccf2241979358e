//! Removes secrets from a report. The plugin never reads Secret objects, but variables, arguments
//! and log lines may contain secrets. Text that may be a secret is removed. Pure.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;

/// Replacement of a secret.
pub(crate) const LEFT_OUT: &str = "<left out>";
/// Shorter values of variables are not removed from other text, where they would match too often.
const MIN_VALUE: usize = 6;
/// Prefix of Roundhouse's own variables, which contain no secrets.
const OURS: &str = "ROUNDHOUSE_";

/// Patterns of text that looks like a secret. The match of group 1 stays.
const PATTERNS: [&str; 11] = [
    // Private keys, also with a prefix such as the time before each line. `random` finds a key
    // without its end.
    r"(?s)()-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----.*?-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----",
    // JSON Web Tokens, such as those of service accounts.
    r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
    // Keys with the prefix of their issuer: GitHub, GitLab, Hugging Face, Slack, OpenAI, NVIDIA,
    // PyPI, W&B, AWS, Google.
    r"()\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abeprs]-|sk-|nvapi-|pypi-|wandb_v1_|AKIA|ASIA|AIza|ya29\.)[A-Za-z0-9_-]{12,}",
    // HTTP headers with credentials.
    r"(?i)(authorization[\x22']?\s*[:=]\s*[\x22']?(?:(?:bearer|basic|token)\s+)?)[^\s\x22',]+",
    r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}",
    // Signatures in addresses: S3, Google Cloud Storage, Azure.
    r"(?i)([?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|access_token|key)=)[^\s&\x22']+",
    // Names of secrets followed by a value, quoted or not, in logs, arguments and documents.
    r"(?i)((?:password|passwd|passphrase|secret|token|nonce|credentials?|(?:api|access|private|account)[_-]?key)[\x22']?(?:\s*[:=]\s*|\s+(?:is|was)\s+))(?:\x22[^\x22\n]*\x22|'[^'\n]*'|[\x22']?[^\s\x22',;&}]+)",
    // Options with the value as the next word, in command lines.
    r"(?i)(\s--?[a-z0-9_-]*(?:password|passwd|passphrase|secret|token|(?:api|access|private|account)[_-]?key)\s+)(?:\x22[^\x22\n]*\x22|'[^'\n]*'|[^\s\x22',;&|-][^\s\x22',;&|]*)",
    // Commands that take a key as their argument.
    r"(?i)(\b(?:wandb|huggingface-cli|hf|docker|ngc)\s+(?:auth\s+)?login\s+(?:--[a-z-]+(?:=\S+)?\s+)*)[^\s\x22'|;&-][^\s\x22'|;&]*",
    r"(?i)(\blogin\b[^\n|;&]*\s-p\s*)[^\s\x22'|;&]+",
    // User and password in an address.
    r"(://)[^/\s:@]+:[^/\s@]+@",
];

/// Long words, which count as keys if [`is_random`] says that their characters are random.
const RANDOM: &str = r"[A-Za-z0-9+/_=-]{32,}";
/// UIDs of objects. They and digests of images are random but not secret, so they stay.
const IDENTIFIER: &str =
    r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
const DIGEST_PREFIX: &str = "sha256:";

/// Ends of names of options and keys whose value is a secret.
const NAMES: [&str; 7] = [
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    // The nonce of a generation: agents accept it as proof that a client may read the job.
    "nonce",
];

/// Removes the secrets of one job.
#[derive(Debug)]
pub(crate) struct Redactor {
    patterns: Vec<Regex>,
    /// Patterns for variables from a Secret: the value of `NAME=value` is removed everywhere.
    names: Vec<Regex>,
    /// Values of variables, the longest first.
    values: Vec<String>,
    random: Regex,
    identifier: Regex,
}

impl Redactor {
    /// A redactor that knows the variables and nonces of `objects`.
    ///
    /// # Errors
    /// A pattern is invalid, which would be a defect.
    pub(crate) fn of(objects: &[Value]) -> anyhow::Result<Self> {
        let (mut names, mut values) = (BTreeSet::new(), BTreeSet::new());
        for object in objects {
            learn(object, &mut names, &mut values);
        }
        let patterns = PATTERNS.iter().map(|pattern| Regex::new(pattern));
        let names = names.iter().map(|name| {
            let name = regex::escape(name);
            Regex::new(&format!(
                r"(\b{name}\b[\x22']?\s*[:=]\s*)(?:\x22[^\x22\n]*\x22|'[^'\n]*'|[^\s\x22',;]+)"
            ))
        });
        let mut values: Vec<String> = values.into_iter().collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Ok(Self {
            patterns: patterns.collect::<Result<_, _>>()?,
            names: names.collect::<Result<_, _>>()?,
            values,
            random: Regex::new(RANDOM)?,
            identifier: Regex::new(IDENTIFIER)?,
        })
    }

    /// The text without secrets.
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
        self.without_random_words(&text)
    }

    fn without_random_words(&self, text: &str) -> String {
        let (mut kept, mut end) = (String::with_capacity(text.len()), 0);
        for word in self.random.find_iter(text) {
            let before = &text[..word.start()];
            let explains =
                before.ends_with(DIGEST_PREFIX) || self.identifier.is_match(word.as_str());
            if !explains && is_random(word.as_str()) {
                kept += &text[end..word.start()];
                kept += LEFT_OUT;
                end = word.end();
            }
        }
        kept + &text[end..]
    }

    /// Removes values of variables and other secrets from an object.
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

/// Whether a long word is random: it mixes digits and both cases as in base64, or it is
/// hexadecimal. Paths and names of classes have few digits and few capitals.
fn is_random(word: &str) -> bool {
    let share = |is: fn(&u8) -> bool| {
        let number = word.bytes().filter(is).count();
        number as f64 / word.len() as f64
    };
    let is_hex = share(u8::is_ascii_hexdigit) >= 1.0;
    let digits = share(u8::is_ascii_digit);
    if is_hex {
        // A long number or a word such as `deadbeef` does not mix digits and letters.
        return (0.2..0.95).contains(&digits);
    }
    digits >= 0.05 && share(u8::is_ascii_uppercase) >= 0.15 && share(u8::is_ascii_lowercase) >= 0.15
}

fn is_secret_name(name: &str) -> bool {
    let plain: String = name
        .to_lowercase()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    NAMES.iter().any(|secret| plain.ends_with(secret))
}

/// Collects the names and values of secret variables, and nonces, from an object.
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
            let nonce = map.get("nonce").and_then(Value::as_str);
            let nonce = nonce.filter(|nonce| nonce.len() >= MIN_VALUE);
            values.extend(nonce.map(str::to_owned));
            map.values().for_each(|value| learn(value, names, values));
        }
        Value::Array(items) => items.iter().for_each(|item| learn(item, names, values)),
        // Some annotations are JSON documents.
        Value::String(text) if text.starts_with('{') => {
            if let Ok(document) = serde_json::from_str(text) {
                learn(&document, names, values);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_removed_from_text() {
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
            (
                "wandb login 0123456789abcdef0123456789abcdef01234567",
                "0123456789",
            ),
            ("sh -c 'train --hub-token abcabc --lr 1'", "abcabc"),
            ("GET /a?X-Amz-Signature=0f0f0f&x=1", "0f0f0f"),
            ("https://x.blob/c?sv=1&sig=Zm9v%3D", "Zm9v"),
            ("nvapi-abcdefghijklmnop", "abcdefg"),
            ("password: \"two words\" next", "words"),
            ("docker login -u me -p hunter2 x.io", "hunter2"),
            (
                "key lqTxA4Xf0zrv8cYJ2N7sWk3dPq5mBg1H here",
                "lqTxA4Xf0zrv8cYJ",
            ),
        ] {
            let shown = redactor.text(text);
            assert!(
                !shown.contains(secret) && shown.contains(LEFT_OUT),
                "{shown}"
            );
        }
    }

    /// A line of a private key as OpenSSL writes it, with 64 characters.
    const KEY_LINE: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj";

    #[test]
    fn all_lines_of_a_private_key_are_removed() {
        let redactor = Redactor::of(&[]).unwrap();
        let begin = "-----BEGIN PRIVATE KEY-----";
        let end = "-----END PRIVATE KEY-----";
        let log = |lines: &[&str]| {
            let lines = lines.iter().enumerate();
            let lines = lines.map(|(at, line)| format!("2026-11-26T22:00:0{at}Z {line}\n"));
            lines.collect::<String>()
        };
        for lines in [
            &["before", begin, KEY_LINE, KEY_LINE, end, "after"][..],
            // The log begins or ends inside the key.
            &["before", KEY_LINE, end, "after"],
            &["before", begin, KEY_LINE, "after"],
        ] {
            let shown = redactor.text(&log(lines));
            assert!(!shown.contains("MIIE"), "{shown}");
            assert!(
                shown.contains("before") && shown.contains("after"),
                "{shown}"
            );
        }
    }

    #[test]
    fn text_without_secrets_is_unchanged() {
        let redactor = Redactor::of(&[]).unwrap();
        for text in [
            "step 4 of 9 (44 %), epoch 0: loss 2.5000, rate 0.1, 9000 tokens/s",
            "roundhouse_train_tokens_per_second{rank=\"0\"} 5",
            "store at 10.0.0.1:29500",
            "data.tokens: {context: 128}",
            "secretKeyRef: {name: wandb, key: key}",
            "uid 0b7c0c4e-7f0b-4a52-9d3e-0a1b2c3d4e5f",
            "image x@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "/usr/local/lib/python3/site-packages/torch/nn/parallel/DistributedDataParallel",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING_WITH_A_LONG_NAME2",
            "a_killed_worker_is_an_incident_and_the_other_continues_1",
            "train.py --max-tokens 128 --tokenizer bert",
        ] {
            assert_eq!(redactor.text(text), text);
        }
    }

    #[test]
    fn variables_and_secret_arguments_are_removed() {
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
