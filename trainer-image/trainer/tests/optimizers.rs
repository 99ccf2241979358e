//! Compares optimizers with PyTorch: weights after 50 steps, and values that must not change.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod optimizers {
    pub(crate) mod model;
    mod pytorch;
    mod rules;
    mod speed;
}
