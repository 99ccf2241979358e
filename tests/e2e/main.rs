//! Real pods on a real kubelet, with Roundhouse installed from its chart: `make test` brings the
//! cluster up.
#![allow(clippy::unwrap_used)]

mod digits;
mod faults;
mod isolation;
mod monitoring;
mod parity;
mod refusals;
mod restart;
