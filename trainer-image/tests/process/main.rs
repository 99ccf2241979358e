//! Real `roundhouse-train` processes over Gloo on the loopback interface. The tests write membership
//! files instead of an operator. They need libtorch, but no cluster and no agent.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod best;
mod checkpoints;
mod commit;
mod config_errors;
mod damage;
mod data_errors;
mod elastic;
mod evaluation;
mod failing_steps;
mod formats;
mod fp16;
mod frozen;
mod harness;
mod init_from;
mod large_states;
mod layout;
mod leaving;
mod long_saves;
mod mount;
mod nccl;
mod newest_checkpoint;
mod not_finite;
mod parity;
mod power_sgd;
mod recompute;
mod repeats;
mod replicas;
mod scaling;
mod slices;
mod slow_volumes;
mod state_broadcast;
mod stop_signals;
mod straggler;
mod synced;
mod tensorboard;
mod tracing;
mod training;
mod volumes;
