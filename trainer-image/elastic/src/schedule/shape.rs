//! The shapes of learning rate schedules, each as a factor of the full rate.

use std::f64::consts::PI;

use roundhouse_contract::trainer::optimizer::DecayShape;
use roundhouse_contract::trainer::{Schedule, ScheduleName};

/// The factor of the rate over the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// The rate is always the full rate.
    Constant,
    /// The rate falls from the end of warm-up to the end of training.
    Falling { curve: Curve, min_factor: f64 },
    /// The rate drops after every `step_epochs` epochs.
    Step { step_epochs: f64, gamma: f64 },
    /// The rate falls over the last fraction of the samples.
    StableThenFalling {
        fraction: f64,
        curve: Curve,
        min_factor: f64,
    },
}

/// The curve along which a rate falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Curve {
    /// The factor is `(1 + cos(π·progress)) / 2`.
    Cosine,
    /// The factor is `1 - progress`.
    Linear,
    /// The factor is `(1 - progress)^power`.
    Power(f64),
    /// The factor is `1 - √progress`.
    Sqrt,
}

impl Shape {
    pub(super) fn of(schedule: &Schedule) -> Self {
        let Schedule {
            name,
            warmup_steps: _,
            min_factor,
            step_epochs,
            gamma,
            power,
            decay_fraction,
            decay_shape,
            batch_growth: _,
        } = schedule;
        let min_factor = *min_factor;
        let falling = |curve| Self::Falling { curve, min_factor };
        match name {
            ScheduleName::Constant => Self::Constant,
            ScheduleName::Linear => falling(Curve::Linear),
            ScheduleName::Cosine => falling(Curve::Cosine),
            ScheduleName::Polynomial => falling(Curve::Power(*power)),
            ScheduleName::Step => Self::Step {
                step_epochs: f64::from((*step_epochs).max(1)),
                gamma: *gamma,
            },
            ScheduleName::Wsd => Self::StableThenFalling {
                fraction: *decay_fraction,
                curve: match decay_shape {
                    DecayShape::Linear => Curve::Linear,
                    DecayShape::Sqrt => Curve::Sqrt,
                },
                min_factor,
            },
        }
    }
}

impl Curve {
    /// Returns the factor at a progress from 0 to 1. It falls from 1 to `min_factor`.
    pub(super) fn factor(self, progress: f64, min_factor: f64) -> f64 {
        let fallen = match self {
            Self::Cosine => f64::midpoint(1.0, (PI * progress).cos()),
            Self::Linear => 1.0 - progress,
            Self::Power(power) => (1.0 - progress).powf(power),
            Self::Sqrt => 1.0 - progress.sqrt(),
        };
        min_factor + (1.0 - min_factor) * fallen
    }
}
