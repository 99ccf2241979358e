//! The actions and events between the machine and its driver.

use roundhouse_contract::membership::Master;

/// The place of a process in one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the generation, from 1; per job it only grows.
    pub generation: u64,
    /// Rank of this process, 0 ≤ `rank` < `world_size`.
    pub rank: u32,
    /// Number of ranks of the generation.
    pub world_size: u32,
    /// Number of ranks of each worker; they are consecutive.
    pub procs_per_worker: u32,
    /// Address of the generation's rendezvous store.
    pub master: Master,
    /// Random text that only the ranks of this generation know; empty if there is none.
    pub nonce: String,
}

/// How the training of a process ends, apart from its own errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The process left on request: SIGTERM, or a generation without it.
    Left,
}

/// Next action of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'machine> {
    /// Read the membership file until it shows a newer generation.
    Wait,
    /// Build the generation's process group, then report [`Event::Formed`] or [`Event::Fault`].
    Form(&'machine Place),
    /// Run one step, or the evaluation or save that is due instead, then report
    /// [`Event::Boundary`], [`Event::Finished`] or [`Event::Fault`].
    Step(&'machine Place),
    /// Leave without peers: save the state of this process unless a checkpoint has
    /// it, then report [`Event::SavedAlone`].
    SaveAlone,
    Exit(Outcome),
}

/// Result of an action, or a request from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process has the state from which the generation continues. Other ranks
    /// may still lack it. In the lobby: its worker has kept a copy.
    HasState,
    /// The process group exists and the state is equal on all ranks.
    Formed,
    /// A step is committed, or an evaluation has ended. By then all ranks had seen this generation
    /// or a newer one.
    Boundary {
        agreed_generation: u64,
        all_leave: bool,
    },
    /// A collective failed, or a peer did not arrive.
    Fault {
        /// The generation that failed. When the event arrives, a newer one may be known, which
        /// it does not affect.
        generation: u64,
    },
    /// The last step is committed and evaluated.
    Finished,
    /// A checkpoint holds the state of this process, or it cannot be saved.
    SavedAlone,
    /// The process was asked to leave. It continues until the other ranks no longer need it: until
    /// a newer generation forms, or all ranks leave.
    LeaveRequested,
}

/// Result of passing a document to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The document is the newest generation now.
    Accepted,
    /// The document is not newer than the known generation, or existed before this process started.
    Old,
    /// The document has no place for this process: a defect of the program that wrote it.
    Invalid,
}
