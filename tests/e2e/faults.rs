//! Faults on real kubelets. Whatever happens, the job succeeds with the weights of an undisturbed training,
//! its ledger is proven, and nobody restarts because somebody else failed.

mod dns;
mod drill;
mod fault;
mod leader;
mod nodes;
mod operator;
mod pods;
mod proof;
mod release;
mod script;
