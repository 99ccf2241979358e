//! A process as a member of generations, whatever it trains and whichever library connects it to
//! its peers.
//!
//! The crate knows no tensors and no process group. It uses them through three interfaces:
//! [`Group`], the collectives of one generation on host values; [`State`] and [`StateBroadcast`],
//! the bytes that are trained; and [`Rendezvous`], which builds a group. A [`Member`] does the
//! rest. In the order in which it happens:
//!
//! 1. [`launch`]: the parameters of the process. [`signals`]: the request to leave. [`process`]:
//!    its first and last actions.
//! 2. [`membership`] and [`lobby`]: the generation to join, from a file that the agent writes.
//! 3. [`rendezvous`] and [`form`]: meet the other ranks, agree which one has the newest state, read
//!    it from a checkpoint if no rank has it, send it to the ranks that lack it. [`local_state`] is
//!    this process' part, [`state_broadcast`] the transfer.
//! 4. [`world`]: what the ranks exchange at the end of each step. [`links`]: whether the processes
//!    of a replica have the same result of it. [`interrupt`] and [`blocking`]: waits for peers that
//!    can be ended. [`join_wait`]: when a growing group lets new ranks in.
//! 5. [`checkpointing`], with [`checkpoint`] and [`ledger`]: files on the volume. [`replicas`]:
//!    whether the ranks have one state to write, and [`rank_mismatch`]: which ranks differ if not.
//!
//! [`failure`] has the reasons why a process ends before its training is complete; [`faults`]
//! injects some, for tests. The reports of a process are in `roundhouse-report`.

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
pub mod links;
pub mod lobby;
pub mod local_copies;
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
