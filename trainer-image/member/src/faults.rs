//! Injects faults at named points, for tests. Without feature `faults` every function does nothing.
//! All variables begin with `ROUNDHOUSE_FAULT`:
//!
//! - no suffix: `rank:step:point` makes the process of that rank kill itself there with SIGKILL.
//! - `_FREEZE`: the same with SIGSTOP, until a SIGCONT.
//! - `_FILE`: a file with `rank:point` kills the first process that reaches the point as that rank,
//!   in any step, once. The process removes the file. With `rank:Cut` the process instead loses its
//!   connections to the other processes of its replica when it has the sums of a step, and with
//!   `rank:CutAfterVote` when all have voted on the step, without learning the outcome.
//! - `_LOSE`: `rank:step:point` lets a collective that has succeeded there count as failed on that
//!   rank, as if a peer was lost between two of its sends.
//! - `_STEP_FILE`: a file, or `<file>-<index of the worker>`, with milliseconds by which each step
//!   takes longer.
//! - `_EVALUATION_FILE`: a file with milliseconds by which each batch of an evaluation takes
//!   longer.
//! - `_COPY_FILE`: a file with milliseconds by which each local copy takes longer.
//! - `_VOLUME_FILE`: a file with milliseconds by which each access to the checkpoint volume takes
//!   longer. An access lasts as long as the file contains `hold`.
//! - `_STALE_FILE`: a file with the path of a checkpoint file that has a stale handle.
//! - `_BACKEND=nccl`: processes on CPUs connect over a stand-in for NCCL.
//! - `_COMMIT=device`: those processes commit steps as on a GPU, without the host waiting for the
//!   end of the step.
//! - `_LOSS=20,21`: the loss of the first sample of these steps is NaN.
//! - `_DEVICE=rank:step`: the forward pass of that rank fails there with the message of a broken
//!   GPU.
//! - `_SUM`: breaks a sum over the stand-in (`c10d/src/bridge/fake_nccl.cpp`).
//! - `_FLIP=rank:step`: flips one bit of the first weight of that rank after that step.
//! - `_CHUNK_BYTES`: size of a chunk in which a state is sent.

use crate::failure::Failure;

/// A point at which a fault can strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before the forward pass of a step.
    Forward,
    /// Before the backward pass with the reduction, when the other ranks are in theirs.
    Backward,
    /// After the passes of a process, before the sum over the replicas.
    Sum,
    /// After the backward pass and before the ranks agree, when the other ranks wait for this one's
    /// vote.
    Agree,
    /// When a process of a replica has the sums of a step, before it knows whether the other
    /// processes of the replica have theirs.
    Column,
    /// After all ranks have agreed to commit the step, before the optimizer changes the weights.
    /// Where the device decides, the host does not know the decision yet.
    Update,
    /// After the optimizer's update.
    Commit,
    /// When all ranks of a generation have gathered, before they connect. `step` is the generation.
    Connect,
    /// While a generation forms, before the state is sent. `step` is the last committed one.
    Share,
    /// After the first chunk of the state was sent or received. `step` is the process' own.
    State,
    /// When the process has the state and the receivers have it too, before all ranks know. `step`
    /// is the state's.
    Received,
    /// When the collectives of a generation that forms have succeeded. `step` is the generation.
    Formed,
    /// When the ranks have compared their states before a checkpoint. `step` is the checkpoint's.
    Compare,
    /// When half of a checkpoint's part is written. `step` is the checkpoint's.
    Checkpoint,
    /// When the local copies before are deleted, before the next one is written. `step` is the
    /// copy's.
    CopyBegun,
    /// When a local copy is written, before it gets its name. `step` is the copy's.
    CopyWritten,
    /// When a local copy has its name, before another pod holds it. `step` is the copy's.
    CopyComplete,
    /// On rank 0, when all parts and the manifest of a checkpoint are written, before it gets its
    /// name.
    Complete,
    /// On rank 0, when a checkpoint has its name, before it can become the best one and old ones
    /// are deleted.
    Named,
}

/// Kills or stops the process if a variable names this point.
#[cfg(feature = "faults")]
pub fn point(point: Point, rank: u32, step: u64) {
    use signal_hook::consts::{SIGKILL, SIGSTOP};
    let here = format!("{rank}:{step}:{point:?}");
    for (variable, signal) in [
        ("ROUNDHOUSE_FAULT", SIGKILL),
        ("ROUNDHOUSE_FAULT_FREEZE", SIGSTOP),
    ] {
        if std::env::var(variable).is_ok_and(|value| value == here) {
            let _ = signal_hook::low_level::raise(signal);
        }
    }
    if is_chosen(&format!("{rank}:{point:?}")) {
        let _ = signal_hook::low_level::raise(SIGKILL);
    }
}

/// Whether the file of faults contains this one. Removes the file, so the fault happens once.
#[cfg(feature = "faults")]
fn is_chosen(fault: &str) -> bool {
    let Ok(file) = std::env::var("ROUNDHOUSE_FAULT_FILE") else {
        return false;
    };
    let setting = std::fs::read_to_string(&file).unwrap_or_default();
    setting.trim() == fault && std::fs::remove_file(file).is_ok()
}

/// Fails as a collective that has lost a peer, if a variable names this point.
///
/// # Errors
/// [`Failure::PeerLost`] if the point is named.
#[cfg(feature = "faults")]
pub fn lose(point: Point, rank: u32, step: u64) -> Result<(), Failure> {
    let here = format!("{rank}:{step}:{point:?}");
    if std::env::var("ROUNDHOUSE_FAULT_LOSE").is_ok_and(|value| value == here) {
        return Err(Failure::PeerLost("a test has lost a peer".to_owned()));
    }
    Ok(())
}

/// Makes a step take longer, if a file says so.
#[cfg(feature = "faults")]
pub fn slow_down() {
    let Ok(file) = std::env::var("ROUNDHOUSE_FAULT_STEP_FILE") else {
        return;
    };
    let index = std::env::var(roundhouse_contract::environment::WORKER_INDEX).unwrap_or_default();
    let begun = std::time::Instant::now();
    // A step that waits ends as soon as the file says so.
    loop {
        let setting = std::fs::read_to_string(format!("{file}-{index}"))
            .or_else(|_| std::fs::read_to_string(&file))
            .unwrap_or_default();
        let milliseconds = setting.trim().parse().unwrap_or_default();
        let left = std::time::Duration::from_millis(milliseconds).saturating_sub(begun.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(20)));
    }
}

/// Makes a batch of an evaluation take longer, if a file says so.
#[cfg(feature = "faults")]
pub fn slow_evaluation_down() {
    sleep_for_file("ROUNDHOUSE_FAULT_EVALUATION_FILE");
}

/// Makes a local copy take longer, if a file says so.
#[cfg(feature = "faults")]
pub fn slow_copy_down() {
    sleep_for_file("ROUNDHOUSE_FAULT_COPY_FILE");
}

/// Sleeps for the milliseconds in the file that a variable names.
#[cfg(feature = "faults")]
fn sleep_for_file(variable: &str) {
    let file = std::env::var(variable).unwrap_or_default();
    let setting = std::fs::read_to_string(file).unwrap_or_default();
    if let Ok(milliseconds) = setting.trim().parse() {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}

/// Whether to use the stand-in for NCCL.
#[cfg(feature = "faults")]
#[must_use]
pub fn stands_in_for_nccl() -> bool {
    std::env::var("ROUNDHOUSE_FAULT_BACKEND").is_ok_and(|value| value == "nccl")
}

/// Whether to commit steps as on a GPU.
#[cfg(feature = "faults")]
#[must_use]
pub fn commits_on_device() -> bool {
    std::env::var("ROUNDHOUSE_FAULT_COMMIT").is_ok_and(|value| value == "device")
}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn commits_on_device() -> bool {
    false
}

/// Size of a chunk in which a state is sent, if it is set.
#[cfg(feature = "faults")]
#[must_use]
pub fn chunk_bytes() -> Option<u64> {
    let setting = std::env::var("ROUNDHOUSE_FAULT_CHUNK_BYTES").ok()?;
    setting.parse().ok()
}

/// Makes an access to the checkpoint volume take longer, if a file says so.
#[cfg(feature = "faults")]
pub fn volume() {
    const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);
    let Ok(file) = std::env::var("ROUNDHOUSE_FAULT_VOLUME_FILE") else {
        return;
    };
    let setting = || std::fs::read_to_string(&file).unwrap_or_default();
    while setting().trim() == "hold" {
        std::thread::sleep(POLL_INTERVAL);
    }
    if let Ok(milliseconds) = setting().trim().parse() {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}

/// Fails with a stale NFS handle, if a file names this path.
///
/// # Errors
/// `ESTALE` if the path is named.
#[cfg(feature = "faults")]
pub fn stale(path: &std::path::Path) -> std::io::Result<()> {
    let file = std::env::var("ROUNDHOUSE_FAULT_STALE_FILE").unwrap_or_default();
    let setting = std::fs::read_to_string(file).unwrap_or_default();
    if path == std::path::Path::new(&setting) {
        return Err(rustix::io::Errno::STALE.into());
    }
    Ok(())
}

/// Returns no error, because no handle is stale without the feature.
///
/// # Errors
/// Never returns an error.
#[cfg(not(feature = "faults"))]
pub const fn stale(_: &std::path::Path) -> std::io::Result<()> {
    Ok(())
}

/// Whether the loss of a step's first sample is NaN.
#[cfg(feature = "faults")]
#[must_use]
pub fn spoils_loss(step: u64) -> bool {
    let setting = std::env::var("ROUNDHOUSE_FAULT_LOSS").unwrap_or_default();
    setting.split(',').any(|value| value.parse() == Ok(step))
}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn spoils_loss(_: u64) -> bool {
    false
}

/// Message of a GPU that fails in the forward pass of a step, if it is set.
#[cfg(feature = "faults")]
#[must_use]
pub fn device_failure(rank: u32, step: u64) -> Option<&'static str> {
    let setting = std::env::var("ROUNDHOUSE_FAULT_DEVICE").unwrap_or_default();
    let breaks = setting == format!("{rank}:{step}");
    breaks.then_some("CUDA error: uncorrectable ECC error encountered")
}

/// When a rank loses its connections to the other processes of its replica in the vote on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    BeforeVote,
    /// All have voted, and this process does not learn the outcome.
    AfterVote,
}

impl Cut {
    /// The name in the file of faults.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeVote => "Cut",
            Self::AfterVote => "CutAfterVote",
        }
    }
}

/// When this rank loses its connections to the other processes of its replica, if it does in this
/// step.
#[cfg(feature = "faults")]
#[must_use]
pub fn cut_of(rank: u32) -> Option<Cut> {
    let mut all = [Cut::BeforeVote, Cut::AfterVote].into_iter();
    all.find(|cut| is_chosen(&format!("{rank}:{}", cut.name())))
}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn cut_of(_: u32) -> Option<Cut> {
    None
}

/// Whether a bit of a rank's weights flips after a step.
#[cfg(feature = "faults")]
#[must_use]
pub fn flips_bit(rank: u32, step: u64) -> bool {
    let setting = std::env::var("ROUNDHOUSE_FAULT_FLIP").unwrap_or_default();
    setting == format!("{rank}:{step}")
}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn flips_bit(_: u32, _: u64) -> bool {
    false
}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn device_failure(_: u32, _: u64) -> Option<&'static str> {
    None
}

#[cfg(not(feature = "faults"))]
pub const fn point(_: Point, _: u32, _: u64) {}

/// Loses no peer, because no test runs without the feature.
///
/// # Errors
/// Never returns an error.
#[cfg(not(feature = "faults"))]
pub const fn lose(_: Point, _: u32, _: u64) -> Result<(), Failure> {
    Ok(())
}

#[cfg(not(feature = "faults"))]
pub const fn slow_down() {}

#[cfg(not(feature = "faults"))]
pub const fn slow_evaluation_down() {}

#[cfg(not(feature = "faults"))]
pub const fn slow_copy_down() {}

#[cfg(not(feature = "faults"))]
pub const fn volume() {}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn chunk_bytes() -> Option<u64> {
    None
}
