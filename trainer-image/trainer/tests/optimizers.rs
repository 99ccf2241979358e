//! Optimizers against PyTorch: weights after 50 steps, and what they must not touch.

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
