//! Faults on real kubelets. After every fault the job succeeds with the weights of an undisturbed
//! run, its ledger passes the audit, and no worker restarts because another worker failed.

mod copies;
mod dns;
mod drill;
mod fault;
mod g11_frozen;
mod large_replicas;
mod leader;
mod nodes;
mod operator;
mod pods;
mod proof;
mod release;
mod scale;
mod script;
mod shards;
