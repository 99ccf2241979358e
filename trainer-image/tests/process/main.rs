//! Real `roundhouse-train` processes over Gloo on the loopback interface. The tests write
//! membership files instead of an operator. They need libtorch, but no cluster and no agent.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod config_errors;
mod evaluation;
mod failing_steps;
mod fp16;
mod frozen;
mod g02_formats;
mod g03_commit;
mod g03_elastic;
mod g04_repeats;
mod g05_parity;
mod g06_slices;
mod g07_best;
mod g07_checkpoints;
mod g08_replicas;
mod g09_slow_volumes;
mod g09_volumes;
mod g19_damage;
mod g19_data_errors;
mod harness;
mod held_copies;
mod init_from;
mod large_replicas;
mod large_states;
mod layout;
mod leaving;
mod local_copies;
mod long_saves;
mod mount;
mod nccl;
mod newest_checkpoint;
mod not_finite;
mod peer_copies;
mod power_sgd;
mod recompute;
mod scaling;
mod state_broadcast;
mod stop_signals;
mod straggler;
mod synced;
mod tensorboard;
mod tracing;
mod training;
