//! Optimizers against PyTorch: weights after 50 steps, and what they must not touch.

mod optimizers {
    pub(crate) mod model;
    mod pytorch;
    mod rules;
    mod speed;
}
