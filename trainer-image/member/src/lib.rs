//! A process as a member of generations, whatever it trains and whichever library connects it to its peers.
//!
//! The crate knows no tensors and no process group. What it needs of them are three traits: [`Group`], the
//! collectives of one generation on host values; [`State`] and [`StateBroadcast`], the bytes of what is trained; and
//! [`Rendezvous`], which builds a group. With them a [`Member`] does the rest. In the order in which it happens:
//!
//! 1. [`launch`]: what the process is told at its start. [`signals`]: when it is asked to leave. [`process`]: its first
//!    and its last acts.
//! 2. [`membership`] and [`lobby`]: which generation it is to join, from a file that the agent shows.
//! 3. [`rendezvous`] and [`form`]: meet the other ranks, agree who has the state, read it from a checkpoint if no rank has it, send it
//!    to those that lack it. [`held`] is what this process has of it, [`state_broadcast`] how it is sent.
//! 4. [`world`]: what the ranks tell each other at the end of each step. [`interrupt`] and [`blocking`]: waits for
//!    peers that can be ended. [`join_wait`]: when a world that grows lets the newcomers in.
//! 5. [`keeping`], with [`checkpoint`] and [`ledger`]: what is written to the volume. [`replicas`]: whether the ranks have one state
//!    to write, and [`rank_mismatch`]: which ranks differ if they have not.
//! 6. [`report`], with [`sections`]: what the agent and people are told.
//!
//! [`failure`] says why a process ends before its training is complete; [`faults`] injects some, for tests.

pub mod blocking;
pub mod checkpoint;
pub mod checkpointing;
pub mod failure;
pub mod faults;
pub mod form;
pub mod group;
pub mod interrupt;
pub mod join_wait;
pub mod launch;
pub mod ledger;
pub mod lobby;
pub mod local_state;
pub mod member;
pub mod membership;
pub mod process;
pub mod rank_mismatch;
pub mod rendezvous;
pub mod replicas;
pub mod signals;
pub mod state;
pub mod state_broadcast;
pub mod world;

pub use checkpointing::Checkpointing;
pub use failure::Failure;
pub use group::{Abort, Group, Rendezvous};
pub use launch::Launch;
pub use local_state::LocalState;
pub use member::Member;
pub use state::{State, Table};
pub use state_broadcast::StateBroadcast;
pub use world::World;
