use proptest::prelude::*;

use super::*;

/// A post with this percentage and these metrics.
fn post(percent: &str, metrics: &[(&str, &str)]) -> Vec<u8> {
    let metric = |(name, value)| format!(r#"{{"name": "{name}", "value": "{value}"}}"#);
    let metrics: Vec<String> = metrics.iter().copied().map(metric).collect();
    let metrics = metrics.join(", ");
    format!(
        r#"{{"trainerStatus": {{"lastUpdatedTime": "2026-11-28T07:00:00.000001+00:00",
        "progressPercentage": {percent}, "estimatedRemainingSeconds": 90, "metrics": [{metrics}]}}}}"#
    )
    .into_bytes()
}

#[test]
fn posts_of_a_whole_training_are_read() {
    let begin = read(&post("0", &[("total_steps", "40")])).unwrap();
    let total_steps = Some(40);
    let expected = Report {
        total_steps,
        ..Report::default()
    };
    assert_eq!(begin, expected);
    let logged = [
        ("loss", "0.5"),
        ("grad_norm", "1.25"),
        ("learning_rate", "5e-05"),
        ("epoch", "1.25"),
    ];
    let counters = [
        ("current_step", "10"),
        ("total_steps", "40"),
        ("current_epoch", "1.25"),
    ];
    let step = read(&post("25", &[&logged[..], &counters].concat())).unwrap();
    let expected = Report {
        step: Some(10),
        total_steps,
        epoch: Some(1),
        loss: Some(0.5),
        ..Report::default()
    };
    assert_eq!(step, expected);
    let means = [
        ("train_runtime", "9.0"),
        ("train_samples_per_second", "17.5"),
        ("train_loss", "0.75"),
    ];
    let end = read(&post("100", &[&logged[..], &means].concat())).unwrap();
    let expected = Report {
        epoch: Some(1),
        loss: Some(0.5),
        samples_per_second: Some(17.5),
        is_complete: true,
        ..Report::default()
    };
    assert_eq!(end, expected);
}

#[test]
fn training_that_logs_no_loss_has_its_mean() {
    let end = read(&post("100", &[("train_loss", "0.75")])).unwrap();
    assert_eq!(end.loss, Some(0.75));
}

#[test]
fn invalid_numbers_do_not_hide_the_step() {
    for wrong in ["nan", "inf", "-inf", "1e999", "", "many", "True"] {
        let metrics = [
            ("current_step", "7"),
            ("total_steps", wrong),
            ("loss", wrong),
            ("epoch", wrong),
            ("train_samples_per_second", wrong),
        ];
        let expected = Report {
            step: Some(7),
            ..Report::default()
        };
        assert_eq!(read(&post("NaN", &metrics)), Ok(expected), "{wrong}");
    }
}

#[test]
fn excessive_steps_fit_into_a_status() {
    for step in ["18446744073709551615", "1e19"] {
        let read = read(&post("5", &[("current_step", step)])).unwrap();
        assert_eq!(read.step, Some(i64::MAX.cast_unsigned()), "{step}");
    }
}

#[test]
fn post_without_a_status_changes_nothing() {
    for text in [
        "{}",
        r#"{"trainerStatus": null}"#,
        r#"{"trainerStatus": {}}"#,
        r#"{"trainerStatus": {"metrics": null}}"#,
        r#"{"dataInitializerStatus": {"progressPercentage": 5}}"#,
    ] {
        assert_eq!(read(text.as_bytes()), Ok(Report::default()), "{text}");
    }
}

#[test]
fn unreadable_posts_have_a_reason() {
    let deep = "[".repeat(60_000);
    let with = |metrics: &str| format!(r#"{{"trainerStatus": {{"metrics": {metrics}}}}}"#);
    let step = |step| String::from_utf8(post("5", &[("current_step", step)])).unwrap();
    for (text, words) in [
        ("", "not JSON"),
        (&deep, "recursion limit"),
        (&with(&deep), "recursion limit"),
        ("[1]", "not a JSON object"),
        (r#"{"trainerStatus": 5}"#, "trainerStatus is not an object"),
        (&with("{}"), "metrics are not a list"),
        (&step("-1"), "not a number of steps: \"-1\""),
        (&step("nan"), "not a number of steps"),
        (&step("1e300"), "not a number of steps"),
        (&step(&"9".repeat(60_000)), "999..."),
        (
            &with(r#"[{"name": "current_step", "value": null}]"#),
            "not a number of steps: null",
        ),
        (
            r#"{"trainerStatus": {"progressPercentage": 45}}"#,
            "no metric current_step",
        ),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert!(read(b"\xff").unwrap_err().contains("not UTF-8"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_metric_is_finite_and_fits_a_status(name in "current_step|total_steps|loss|epoch", value in "\\PC{0,12}|[-+0-9.eE]{0,9}") {
        let value = value.replace(['\\', '"'], "");
        let Ok(report) = read(&post("0", &[(&*name, &*value)])) else {
            prop_assert_eq!(name, "current_step");
            return Ok(());
        };
        for count in [report.step, report.total_steps, report.epoch].into_iter().flatten() {
            prop_assert!(i64::try_from(count).is_ok());
        }
        prop_assert!(report.loss.is_none_or(f64::is_finite));
    }

    #[test]
    fn every_step_is_read_as_it_was_posted(step: u32, total: u32, loss in -1e30..1e30f64) {
        let (step_text, total_text, loss_text) = (step.to_string(), total.to_string(), loss.to_string());
        let metrics = [("loss", &*loss_text), ("current_step", &*step_text), ("total_steps", &*total_text)];
        let report = read(&post("99", &metrics)).unwrap();
        prop_assert_eq!((report.step, report.total_steps), (Some(step.into()), Some(total.into())));
        prop_assert_eq!(report.loss, Some(loss));
    }
}
