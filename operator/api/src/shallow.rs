//! Answers of an API server without what is nested too deeply in a `TrainingJob`. It stores options of any depth, and
//! `serde_json` reads 128 levels: one such job would make the list of all jobs an error.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Resource};

use crate::TrainingJob;

/// Levels that are kept, from the root of an answer. In a list or a watch two of them are around a job.
pub const MAX_LEVELS: u32 = 64;

/// The same client. What a `TrainingJob` has below [`MAX_LEVELS`] is `null` in its answers.
#[must_use]
pub fn shallow(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let jobs = format!("/{}", TrainingJob::plural(&()));
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let mut levels = request.uri().path().contains(&jobs).then(Levels::default);
        async move {
            let answer = client.send(request).await?;
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

/// Where a reader of JSON is that comes in parts.
#[derive(Debug, Default)]
struct Levels {
    depth: u32,
    is_in_string: bool,
    /// The byte after a backslash.
    is_escaped: bool,
}

impl Levels {
    /// The next part, without what is too deep.
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
    fn what_is_too_deep_becomes_null_and_the_rest_stays_as_it_is() {
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
    fn nothing_is_left_out_of_what_is_flat() {
        let levels = usize::try_from(MAX_LEVELS).unwrap();
        let text = nested(levels);
        assert_eq!(kept(&text, text.len()), text);
    }
}
