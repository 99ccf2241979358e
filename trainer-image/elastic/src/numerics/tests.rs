use super::*;

const OVERFLOW: Finite = Finite {
    loss: true,
    gradient: false,
};
const NO_LOSS: Finite = Finite {
    loss: false,
    gradient: false,
};

fn policy(on_non_finite: OnNonFinite, scales_loss: bool) -> Policy {
    Policy {
        on_non_finite,
        max_in_a_row: 3,
        scales_loss,
    }
}

#[test]
fn finite_step_updates_under_every_policy() {
    let finite = Finite {
        loss: true,
        gradient: true,
    };
    for on_non_finite in [OnNonFinite::Fail, OnNonFinite::Skip] {
        for scales_loss in [false, true] {
            let verdict = policy(on_non_finite, scales_loss).verdict(
                finite,
                Skips {
                    total: 9,
                    in_a_row: 3,
                },
            );
            assert_eq!(verdict, Verdict::Update);
        }
    }
}

#[test]
fn infinite_step_fails_unless_it_may_be_skipped() {
    let none = Skips::default();
    for (on_non_finite, scales_loss, finite, expected) in [
        (OnNonFinite::Fail, false, OVERFLOW, Verdict::Fail),
        (OnNonFinite::Fail, false, NO_LOSS, Verdict::Fail),
        (OnNonFinite::Skip, false, OVERFLOW, Verdict::Skip),
        (OnNonFinite::Skip, false, NO_LOSS, Verdict::Skip),
        // The loss scale exists for gradients that overflow, not for losses that do.
        (OnNonFinite::Fail, true, OVERFLOW, Verdict::Skip),
        (OnNonFinite::Fail, true, NO_LOSS, Verdict::Fail),
        (OnNonFinite::Skip, true, NO_LOSS, Verdict::Skip),
    ] {
        let found = policy(on_non_finite, scales_loss).verdict(finite, none);
        assert_eq!(
            found, expected,
            "{on_non_finite:?}, {scales_loss}, {finite:?}"
        );
    }
}

#[test]
fn step_after_the_maximum_of_skips_fails() {
    let policy = policy(OnNonFinite::Skip, false);
    let mut skips = Skips::default();
    for _ in 0..3 {
        assert_eq!(policy.verdict(NO_LOSS, skips), Verdict::Skip);
        skips = skips.after(true);
    }
    assert_eq!(policy.verdict(NO_LOSS, skips), Verdict::Fail);
    let skips = skips.after(false);
    assert_eq!((skips.total, skips.in_a_row), (3, 0));
    assert_eq!(policy.verdict(NO_LOSS, skips), Verdict::Skip);
}

/// Scale and growth tracker of `torch.amp.GradScaler` after each of several steps.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    initial: f64,
    growth_interval: u32,
    overflows: Vec<bool>,
    scales: Vec<f64>,
    trackers: Vec<u64>,
}

#[test]
fn loss_scale_equals_torch_grad_scaler() {
    let text = include_str!("fixtures.json");
    let cases: Vec<Case> = serde_json::from_str(text).unwrap();
    assert!(cases.len() >= 3);
    for case in cases {
        let settings = LossScaling {
            initial: case.initial,
            growth_interval: case.growth_interval,
        };
        let mut own = LossScale::start(&settings);
        let expected = case.scales.iter().zip(&case.trackers);
        for (step, (has_overflowed, expected)) in case.overflows.iter().zip(expected).enumerate() {
            own = own.after(*has_overflowed, &settings);
            let bits = (own.scale.to_bits(), own.clean_steps);
            assert_eq!(bits, (expected.0.to_bits(), *expected.1), "step {step}");
        }
    }
}

#[test]
fn default_loss_scale_settings_equal_grad_scaler() {
    let settings = LossScaling::default();
    assert_eq!(
        (settings.initial.to_bits(), settings.growth_interval),
        (65_536.0_f64.to_bits(), 2_000)
    );
}
