//! The page of the TrainingJob's fields, from the schema of the `CustomResourceDefinition`.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use crate::meanings::Meanings;
use crate::table::{MARK, code, table};

/// A type of Kubernetes, whose fields Kubernetes documents.
const POD_TEMPLATE: &str = "spec.workers.template";

const HEAD: &str = "# TrainingJob

`roundhouse.dev/v1alpha1`, kind `TrainingJob`, short name `tj`. `kubectl explain trainingjob.spec --recursive` shows the same
on a cluster. Numbers are decimal; a field without a default may be left out unless it is *required*.

";

const TEMPLATE: &str = "
`spec.workers.template` is a [PodTemplateSpec](https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/)
of Kubernetes, with every field that your cluster knows.
";

const RULES: &str = "
## What the API server refuses

Besides the bounds above, `kubectl apply` fails with one of these messages:

";

pub(crate) fn page() -> Result<String, serde_json::Error> {
    let crd = serde_json::to_value(roundhouse_api::crd()?)?;
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let meanings = Meanings::read();
    let mut text = format!("{MARK}{HEAD}");
    let mut rules = Vec::new();
    object(&mut text, "spec", &schema["properties"]["spec"], &meanings);
    text += TEMPLATE;
    object(
        &mut text,
        "status",
        &schema["properties"]["status"],
        &meanings,
    );
    find_rules(schema, &mut rules);
    text += RULES;
    for rule in rules {
        let _ = writeln!(text, "- {rule}");
    }
    Ok(text)
}

/// Writes a section for an object, and for each object below it.
fn object(text: &mut String, path: &str, schema: &Value, meanings: &Meanings) {
    let level = if path.contains('.') { "###" } else { "##" };
    let _ = write!(text, "{level} {}\n\n", code(path));
    if let Some(description) = schema["description"].as_str() {
        let _ = write!(text, "{}\n\n", flat(description));
    }
    let required: BTreeSet<&str> = strings(&schema["required"]).collect();
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let rows = properties.iter().map(|(name, field)| {
        let needed = if required.contains(name.as_str()) {
            "*required*".to_owned()
        } else {
            default(field)
        };
        [
            code(name),
            kind(field),
            needed,
            bounds(field),
            description(field, &meanings.of(&format!("{path}.{name}"))),
        ]
    });
    *text += &table(["field", "type", "default", "bounds", "description"], rows);
    *text += "\n";
    for (name, field) in properties {
        let below = format!("{path}.{name}");
        if below == POD_TEMPLATE {
            continue;
        }
        if field["properties"].is_object() {
            object(text, &below, field, meanings);
        } else if field["items"]["properties"].is_object() {
            object(text, &format!("{below}[]"), &field["items"], meanings);
        }
    }
}

/// The description of a field and the meaning of each enum value.
fn description(field: &Value, meanings: &[(String, String)]) -> String {
    let mut text = flat(field["description"].as_str().unwrap_or_default());
    for (value, meaning) in meanings {
        let _ = write!(text, "<br>{}: {}", code(value), flat(meaning));
    }
    text
}

fn kind(field: &Value) -> String {
    if field["enum"].is_array() {
        let values = strings(&field["enum"]).map(code);
        return values.collect::<Vec<_>>().join(", ");
    }
    match field["type"].as_str().unwrap_or("any") {
        "array" => format!("list of {}", kind(&field["items"])),
        "object" if field["additionalProperties"].is_object() => "map".to_owned(),
        "string" if field["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

/// The default of a field; an object has none, since its fields have theirs.
fn default(field: &Value) -> String {
    match &field["default"] {
        Value::Null | Value::Object(_) => String::new(),
        value => code(value),
    }
}

/// Bounds of a number, of a length, or of the number of items.
fn bounds(field: &Value) -> String {
    let mut parts = Vec::new();
    for (least, most, unit) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ] {
        let [least, most] = [least, most].map(|key| field[key].as_f64().map(number));
        parts.extend(match (least, most) {
            (None, None) => None,
            (Some(least), None) => Some(format!("at least {least}{unit}")),
            (None, Some(most)) => Some(format!("at most {most}{unit}")),
            (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
        });
    }
    let inner = &field["items"];
    if inner["properties"].is_null() && inner.is_object() {
        let inner = bounds(inner);
        parts.extend((!inner.is_empty()).then(|| format!("each {inner}")));
    }
    parts.join("; ")
}

/// Formats a number with commas between groups of three digits.
fn number(value: f64) -> String {
    let plain = value.to_string();
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        if at > 0 && left.is_multiple_of(3) && whole.chars().nth(at - 1) != Some('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() {
        grouped
    } else {
        format!("{grouped}.{fraction}")
    }
}

/// Collects the messages of all CEL rules, each once.
fn find_rules(schema: &Value, rules: &mut Vec<String>) {
    let own = schema["x-kubernetes-validations"].as_array();
    for rule in own.into_iter().flatten() {
        let message = flat(rule["message"].as_str().unwrap_or_default());
        if !message.is_empty() && !rules.contains(&message) {
            rules.push(message);
        }
    }
    for field in schema["properties"].as_object().into_iter().flatten() {
        find_rules(field.1, rules);
    }
    if schema["items"].is_object() {
        find_rules(&schema["items"], rules);
    }
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_row_has_type_default_bounds_and_description() {
        let page = page().unwrap();
        let avoid = page
            .lines()
            .find(|line| line.contains("`avoidNodeSeconds`"));
        let avoid = avoid.unwrap();
        assert!(avoid.starts_with("| `avoidNodeSeconds` | integer | `1800` | 1 to 2,592,000 | "));
        assert!(page.contains("| `replicas` | integer | *required* | 1 to 10,000 | "));
        assert!(page.contains("\n### `spec.trainer.data.mix[]`\n"));
    }

    #[test]
    fn enum_values_have_meanings() {
        let page = page().unwrap();
        let policy = page
            .lines()
            .find(|line| line.contains("| `cleanPodPolicy`"));
        let policy = policy.unwrap();
        assert!(
            policy.contains("<br>`Running`: Pods that still run."),
            "{policy}"
        );
        assert!(
            policy.contains("<br>`All`: All pods of the job."),
            "{policy}"
        );
    }

    #[test]
    fn enums_with_equal_values_have_separate_meanings() {
        let page = page().unwrap();
        for (field, meaning) in [
            ("onNonFinite", "The step is committed without an update."),
            ("onCorrupt", "Another sample takes its place"),
        ] {
            let head = format!("| `{field}`");
            let row = page.lines().find(|line| line.starts_with(&head));
            let row = row.unwrap();
            assert!(row.contains(&format!("<br>`Skip`: {meaning}")), "{row}");
        }
    }

    #[test]
    fn messages_of_cel_rules_are_listed() {
        let page = page().unwrap();
        assert!(page.contains("\n- trainer is immutable: delete and re-create the job\n"));
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!(number(1_000_000.0), "1,000,000");
        assert_eq!(number(999.0), "999");
        assert_eq!(number(0.5), "0.5");
        assert_eq!(number(-100.0), "-100");
    }
}
