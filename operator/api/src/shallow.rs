//! Cuts deep values out of the API server's answers. The API server stores `trainer.options` and
//! `managedFields` of any depth, and `serde_json` stops at 128 levels: one such object would make
//! the list of all objects of its kind unreadable.
//!
//! The client of kube asks for JSON without compression.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;

/// Levels that are kept, counted from the root of an answer. A list or a watch has two
/// levels around an object.
pub const MAX_LEVELS: u32 = 64;

/// Wraps a client. Values below [`MAX_LEVELS`] are `null` in its answers.
#[must_use]
pub fn shallow(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let answer = client.send(request).await?;
            let mut levels = is_json(answer.headers()).then(Levels::default);
            Ok::<_, kube::Error>(answer.map(|body| {
                body.map_frame(move |part| {
                    part.map_data(|data| match &mut levels {
                        Some(levels) => levels.keep(data),
                        None => data,
                    })
                })
            }))
        }
    });
    Client::new(service, namespace)
}

/// Whether an answer is JSON; logs are not, for example.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

/// Position of the scanner in a JSON text that arrives in parts.
#[derive(Debug, Default)]
struct Levels {
    depth: u32,
    is_in_string: bool,
    /// Whether the last byte was a backslash.
    is_escaped: bool,
}

impl Levels {
    /// Returns the next part without values that are too deep.
    fn keep(&mut self, part: Bytes) -> Bytes {
        let mut kept = (self.depth > MAX_LEVELS).then(Vec::new);
        for (at, byte) in part.iter().enumerate() {
            let before = self.depth;
            self.read(*byte);
            if before > MAX_LEVELS {
                continue;
            }
            if self.depth > MAX_LEVELS {
                let kept = kept.get_or_insert_with(|| part[..at].to_vec());
                kept.extend_from_slice(b"null");
            } else if let Some(kept) = &mut kept {
                kept.push(*byte);
            }
        }
        kept.map_or(part, Bytes::from)
    }

    const fn read(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_in_string => self.is_escaped = true,
            b'"' => self.is_in_string = !self.is_in_string,
            _ if self.is_in_string => {}
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kept(text: &str, size: usize) -> String {
        let mut levels = Levels::default();
        let parts = text.as_bytes().chunks(size);
        let kept = parts.flat_map(|part| levels.keep(Bytes::copy_from_slice(part)));
        String::from_utf8(kept.collect()).unwrap()
    }

    fn levels_of(value: &Value) -> u32 {
        match value {
            Value::Array(items) => 1 + items.iter().map(levels_of).max().unwrap_or(0),
            Value::Object(fields) => 1 + fields.values().map(levels_of).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn nested(levels: usize) -> String {
        format!(
            "{}1{}",
            "[{\"a\":".repeat(levels / 2),
            "}]".repeat(levels / 2)
        )
    }

    #[test]
    fn values_below_the_depth_limit_become_null() {
        let events = format!(
            "{{\"a\": \"\\\"[[{{\", \"b\": {}}}\n{{\"c\": [1, {{}}]}}\n",
            nested(1_000)
        );
        for size in [1, 2, 7, events.len()] {
            let kept = kept(&events, size);
            let mut events = kept
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            let first = events.next().unwrap();
            assert_eq!(first["a"], "\"[[{");
            assert_eq!(levels_of(&first), MAX_LEVELS);
            assert_eq!(events.next(), Some(json!({"c": [1, {}]})));
            assert_eq!(events.next(), None);
        }
    }

    #[test]
    fn escaped_backslash_does_not_escape_the_quote() {
        let text = format!("[\"\\\\\", {}]", nested(100));
        let kept: Value = serde_json::from_str(&kept(&text, 3)).unwrap();
        assert_eq!(levels_of(&kept), MAX_LEVELS);
    }

    #[tokio::test]
    async fn only_json_is_cut() {
        let deep = nested(1_000);
        for (kind, is_cut) in [("application/json", true), ("text/plain", false)] {
            let text = deep.clone();
            let server = tower::service_fn(move |_: Request<Body>| {
                let answer = http::Response::builder().header(CONTENT_TYPE, kind);
                let answer = answer.body(Body::from(text.clone().into_bytes()));
                async move { Ok::<_, kube::Error>(answer.unwrap()) }
            });
            let client = shallow(Client::new(server, "default"));
            let path = "/api/v1/namespaces/trainingjobs/pods/one/log";
            let text = client.request_text(Request::get(path).body(Vec::new()).unwrap());
            assert_eq!(text.await.unwrap() != deep, is_cut, "{kind}");
        }
    }

    #[test]
    fn json_at_the_depth_limit_is_unchanged() {
        let levels = usize::try_from(MAX_LEVELS).unwrap();
        let text = nested(levels);
        assert_eq!(kept(&text, text.len()), text);
    }
}
