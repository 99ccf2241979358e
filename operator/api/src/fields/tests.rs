use std::collections::BTreeSet;

use roundhouse_contract::trainer::DataFormat;

use super::*;

fn schema() -> Value {
    let crd = serde_json::to_value(crate::crd().unwrap()).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .unwrap()
        .clone()
}

/// The schema of a field below a schema.
fn below<'a>(schema: &'a Value, path: &str) -> &'a Value {
    let names = path.split('.');
    names.fold(schema, |schema, name| &schema["properties"][name])
}

/// Paths of all fields that have no row and are not inside an object that has one.
fn without_row(schema: &Value, path: &str, rows: &BTreeSet<String>, found: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().unwrap() {
        let path = format!("{path}{name}");
        let has_rows_below = rows.iter().any(|row| row.starts_with(&format!("{path}.")));
        if has_rows_below {
            without_row(field, &format!("{path}."), rows, found);
        } else if !rows.contains(&path) {
            found.push(path);
        }
    }
}

#[test]
fn fields_of_schema_and_rows_match() {
    let schema = schema();
    let rows: BTreeSet<String> = FIELDS.iter().map(SpecField::path).collect();
    assert_eq!(rows.len(), FIELDS.len(), "two rows for one field");
    let mut found = Vec::new();
    without_row(&schema, "", &rows, &mut found);
    assert!(
        found.is_empty(),
        "add these fields of the spec to operator/api/src/fields.rs: {found:?}"
    );
    for path in &rows {
        assert!(below(&schema, path).is_object(), "no field spec.{path}");
    }
}

#[test]
fn descriptions_say_when_fields_may_be_edited() {
    let schema = schema();
    for field in FIELDS {
        let path = field.path();
        let description = below(&schema, &path)["description"].as_str().unwrap();
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        let while_suspended = description.contains("Immutable while the job is not suspended.");
        let never = description.contains("Immutable.");
        let expected = match field.edit {
            Edit::Anytime => (false, false),
            Edit::WhileSuspended => (true, false),
            Edit::Never => (false, true),
        };
        assert_eq!((while_suspended, never), expected, "{path}: {description}");
    }
}

#[test]
fn fields_in_pods_are_not_editable_at_any_time() {
    for field in FIELDS {
        let is_in_pods = field.fingerprint != Fingerprint::No;
        assert!(
            !is_in_pods || field.edit != Edit::Anytime,
            "{}",
            field.path()
        );
    }
}

#[test]
fn fields_with_limited_edits_have_a_cel_rule() {
    let schema = schema();
    let rules = schema["x-kubernetes-validations"].as_array().unwrap();
    let of = |path: &str| {
        let head = format!("{path} is immutable");
        let mut found = rules.iter().filter(|rule| {
            let message = rule["message"].as_str().unwrap();
            message.starts_with(&head)
        });
        let rule = found.next().map(|rule| rule["rule"].as_str().unwrap());
        assert!(found.next().is_none(), "two rules for {path}");
        rule
    };
    for (path, rule) in [
        ("suspend", None),
        ("managedBy", Some("self.managedBy == oldSelf.managedBy")),
        (
            "trainer",
            Some(
                "has(self.trainer) == has(oldSelf.trainer) && (!has(self.trainer) || self.trainer == oldSelf.trainer)",
            ),
        ),
        (
            "elastic.leaveGraceSeconds",
            Some(
                "oldSelf.suspend || (self.elastic.leaveGraceSeconds == oldSelf.elastic.leaveGraceSeconds)",
            ),
        ),
        (
            "failurePolicy.rules",
            Some(
                "oldSelf.suspend || (has(self.failurePolicy.rules) == has(oldSelf.failurePolicy.rules) && \
                 (!has(self.failurePolicy.rules) || self.failurePolicy.rules == oldSelf.failurePolicy.rules))",
            ),
        ),
    ] {
        assert_eq!(of(path), rule, "{path}");
    }
    for field in FIELDS {
        assert_eq!(
            of(&field.path()).is_some(),
            field.edit != Edit::Anytime,
            "{}",
            field.path()
        );
    }
}

/// The objects around a field always exist, so that rules need not check them.
#[test]
fn objects_with_rows_below_always_exist() {
    let schema = schema();
    let required: Vec<&str> = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    for field in FIELDS.iter().filter(|it| it.members.len() > 1) {
        assert_eq!(field.members.len(), 2, "{}", field.path());
        let object = camel_case(field.members[0]);
        let has_default = below(&schema, &object).get("default").is_some();
        assert!(has_default || required.contains(&&*object), "{object}");
    }
}

#[test]
fn camel_case_matches_serde() {
    for (member, name) in [
        ("suspend", "suspend"),
        ("ttl_seconds_after_finished", "ttlSecondsAfterFinished"),
        ("managed_by", "managedBy"),
    ] {
        assert_eq!(camel_case(member), name);
    }
}

/// Values of the first list after `field in` in a CEL rule.
fn listed(rule: &str, field: &str) -> BTreeSet<String> {
    let (_, rest) = rule.split_once(&format!("{field} in [")).unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    let names = list
        .split(", ")
        .map(|name| name.trim_matches('\'').to_owned());
    names.collect()
}

#[test]
fn cel_rules_know_each_data_format() {
    let named = |is: &dyn Fn(DataFormat) -> bool| -> BTreeSet<String> {
        let formats = DataFormat::ALL.into_iter().filter(|format| is(*format));
        let names = formats.map(|format| serde_json::to_value(format).unwrap());
        names
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    };
    let schema = schema();
    let rules = schema["x-kubernetes-validations"].as_array().unwrap();
    let rule = |head: &str| {
        let starts = |rule: &&Value| rule["message"].as_str().unwrap().starts_with(head);
        rules.iter().find(starts).unwrap()["rule"].as_str().unwrap()
    };
    let may_have_tokens = named(&|it| it.has_tokens() || it == DataFormat::Custom);
    let only_tokens = named(&|it| it.has_tokens() && !it.has_images());
    for (head, expected) in [
        ("gpt2, bert, llama and switch read tokens", &may_have_tokens),
        ("data.format tokens and text", &only_tokens),
        ("give data.tokens.context", &only_tokens),
    ] {
        let found = listed(rule(head), "self.trainer.data.format");
        assert_eq!(&found, expected, "correct the rule in spec.rs: {head}");
    }
}
