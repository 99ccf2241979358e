//! Tests with real pods on real kubelets and Roundhouse installed from its chart. `make test`
//! starts the cluster.
#![allow(clippy::unwrap_used)]

mod digits;
mod faults;
mod g21_isolation;
mod monitoring;
mod parity;
mod refusals;
mod restart;
