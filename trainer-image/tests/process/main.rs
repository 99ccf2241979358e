//! Real `roundhouse-train` processes over Gloo on the loopback, with hand-written membership
//! files in the place of an operator. Needs libtorch; no cluster, no agent.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod best;
mod checkpoints;
mod commit;
mod damage;
mod elastic;
mod evaluation;
mod faults;
mod formats;
mod fp16;
mod frozen;
mod harness;
mod init_from;
mod input;
mod large_states;
mod layout;
mod leaving;
mod look;
mod mount;
mod nccl;
mod not_finite;
mod overtaken;
mod parity;
mod power_sgd;
mod recompute;
mod repeats;
mod replicas;
mod scaling;
mod sharing;
mod slices;
mod slow_volumes;
mod straggler;
mod synced;
mod tensorboard;
mod tracing;
mod volumes;
