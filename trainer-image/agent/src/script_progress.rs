//! Reads the file in which a script reports its progress. Scripts write what their language
//! produces: Python writes NaN and Infinity, numpy a step as 3.0, argparse one as "3". The parser
//! accepts all of these.

use roundhouse_contract::ScriptProgress;
use serde_json::Value;

/// Parses the progress of a script.
///
/// # Errors
/// Describes the error of the text: it is not a JSON object, or it has no step.
pub fn read(text: &str) -> Result<ScriptProgress, String> {
    let value: Value =
        serde_json::from_str(&without_nan(text)).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(fields) = value else {
        return Err("not a JSON object such as {\"step\": 3}".to_owned());
    };
    let step = fields.get("step").ok_or("it has no \"step\"")?;
    let step = count(step).ok_or_else(|| format!("\"step\" is not a number of steps: {step}"))?;
    let optional = |name: &str| fields.get(name).and_then(count).unwrap_or(0);
    Ok(ScriptProgress {
        step,
        total_steps: optional("totalSteps"),
        epoch: optional("epoch"),
        loss: fields.get("loss").and_then(number),
        samples_per_second: fields
            .get("samplesPerSecond")
            .and_then(number)
            .unwrap_or(0.0),
    })
}

/// Reads a finite number, also from a string.
pub(crate) fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok()?,
        other => other.as_f64()?,
    };
    Some(number).filter(|number: &f64| number.is_finite())
}

/// Reads a number of steps, also from a string or a float. Numbers of a Kubernetes status are
/// signed 64-bit integers.
pub(crate) fn count(value: &Value) -> Option<u64> {
    const MOST: u64 = i64::MAX.cast_unsigned();
    let parsed = match value {
        Value::String(text) => serde_json::from_str(text.trim()).ok()?,
        other => other.clone(),
    };
    if let Some(number) = parsed.as_u64() {
        return Some(number.min(MOST));
    }
    // A value such as 3.0, which is exact below 2^53.
    let number = parsed.as_f64().filter(|number| *number >= 0.0)?;
    let text = format!("{:.0}", number.trunc());
    text.parse().ok().map(|number: u64| number.min(MOST))
}

/// Replaces numbers that JSON does not have with `null`, outside of strings.
pub(crate) fn without_nan(text: &str) -> String {
    let (mut result, mut rest, mut is_string) = (String::new(), text, false);
    while let Some(next) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"]
            .into_iter()
            .find(|word| !is_string && rest.starts_with(word));
        if let Some(word) = word {
            result.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        // An escaped quote does not end a string.
        let len = if is_string && next == '\\' {
            rest.chars().take(2).map(char::len_utf8).sum()
        } else {
            next.len_utf8()
        };
        is_string ^= next == '"';
        result.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_loss_does_not_hide_the_step() {
        for loss in ["NaN", "Infinity", "-Infinity", "null", "\"nan\"", "[1]"] {
            let progress = read(&format!(
                r#"{{"step": 7, "loss": {loss}, "name": "NaN \" NaN"}}"#
            ));
            assert_eq!(
                progress.map(|it| (it.step, it.loss)),
                Ok((7, None)),
                "{loss}"
            );
        }
        assert_eq!(
            read(r#"{"step": 7, "loss": "0.5"}"#).unwrap().loss,
            Some(0.5)
        );
    }

    #[test]
    fn step_is_read_in_every_notation() {
        for (step, expected) in [
            ("3", 3),
            ("3.0", 3),
            ("\"3\"", 3),
            ("\" 3.0 \"", 3),
            ("18446744073709551615", i64::MAX.cast_unsigned()),
            ("1e18", 1_000_000_000_000_000_000),
        ] {
            let progress = read(&format!(
                r#"{{"step": {step}, "totalSteps": 9.0, "epoch": 1.5}}"#
            ))
            .unwrap();
            assert_eq!(
                (progress.step, progress.total_steps, progress.epoch),
                (expected, 9, 1),
                "{step}"
            );
        }
    }

    #[test]
    fn unreadable_progress_has_a_reason() {
        for (text, words) in [
            ("", "not JSON"),
            ("7", "not a JSON object"),
            (r#"{"Step": 7}"#, "no \"step\""),
            (r#"{"step": -1}"#, "not a number of steps: -1"),
            (r#"{"step": NaN}"#, "not a number of steps: null"),
            (r#"{"step": "many"}"#, "not a number of steps"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn strange_text_does_not_panic() {
        for text in [
            "\"",
            "\\",
            "\"\\",
            "NaNNaN",
            "é\"é\\é",
            "{\"step\": 1}\u{0}",
        ] {
            let _ = read(text);
        }
    }
}
