//! Compares the built-in models with PyTorch, torchvision and Transformers
//! (`../../fixtures/make.py`), and with themselves when the batch is divided in other ways. Threads
//! share libtorch's random generators, so code that draws random numbers must run within `seeded`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;
mod formula;
mod ghost;
mod parity;
mod random;
mod recompute;
mod saved;
mod sent;
mod synced;
