//! What the machine and its driver tell each other.

use roundhouse_contract::membership::Master;

/// A process' place in one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the generation.
    pub generation: u64,
    /// Rank of this process.
    pub rank: u32,
    /// Ranks of the generation.
    pub world_size: u32,
    /// Ranks of each worker, which follow each other.
    pub procs_per_worker: u32,
    /// Its rendezvous store.
    pub master: Master,
    /// What its ranks have in common, and nobody else knows; empty: nothing.
    pub nonce: String,
}

/// How a process' training ends, short of an error of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Training is complete.
    Done,
    /// It left on request: SIGTERM, or a generation that says so.
    Left,
}

/// What the driver is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'machine> {
    /// Read the membership file until it shows a newer generation.
    Wait,
    /// Build the generation's process group, then report [`Event::Formed`] or [`Event::Fault`].
    Form(&'machine Place),
    /// Do one step, or what is due in its place, then report [`Event::Boundary`], [`Event::Finished`] or
    /// [`Event::Fault`].
    Step(&'machine Place),
    /// Leave without peers: save the state of this process, unless a checkpoint holds it, then report
    /// [`Event::SavedAlone`].
    SaveAlone,
    /// End the process.
    Exit(Outcome),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process has the state that the generation continues from. Other ranks may lack it still.
    HasState,
    /// The process group stands and the state is equal on all ranks.
    Formed,
    /// A step is committed, or an evaluation has ended; all ranks had seen this generation, or a newer one, when
    /// it was.
    Boundary {
        /// See [`crate::Agreement::newest_generation`].
        agreed_generation: u64,
        /// See [`crate::Agreement::all_leave`].
        all_leave: bool,
    },
    /// A collective failed or a peer did not come.
    Fault {
        /// Where. By the time it is told, a newer one may be known, which it says nothing about.
        generation: u64,
    },
    /// The last step is committed and evaluated.
    Finished,
    /// A checkpoint holds the state of this process, or it cannot be saved.
    SavedAlone,
    /// Somebody asked this process to leave. It continues until the others can do without it: a
    /// newer generation, or everybody leaves.
    LeaveRequested,
}

/// What came of showing a document to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the newest generation from now on.
    Accepted,
    /// It is not newer than what is known, or was there before this process started.
    Old,
    /// It gives this process no place: a defect of the program that wrote it.
    Invalid,
}
