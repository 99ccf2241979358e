//! The built-in models against what PyTorch, torchvision and Transformers compute (`../../fixtures/make.py`), and
//! against themselves with the batch divided in other ways. Threads share libtorch's random generators, so what draws
//! is within `seeded`.
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
