//! Faults at named points, for tests: with feature `faults`, `ROUNDHOUSE_FAULT=rank:step:point` makes the
//! process of that rank kill itself there, as `kill -9` would; with `ROUNDHOUSE_FAULT_FREEZE` it stops, as by
//! SIGSTOP, until somebody continues it. In the file that `ROUNDHOUSE_FAULT_FILE` names, `rank:point` kills the process that
//! is the first to be there, in whatever step, once: the file is gone thereafter. Each step lasts longer by the milliseconds in the file that
//! `ROUNDHOUSE_FAULT_STEP_FILE` names, or in `<that file>-<worker's index>` if there is one, and each batch of an
//! evaluation by those in `ROUNDHOUSE_FAULT_EVALUATION_FILE`. Each access to the checkpoint volume takes longer by
//! those in the file that `ROUNDHOUSE_FAULT_VOLUME_FILE` names, and lasts as long as it says `hold`. As long as there is a file
//! that `ROUNDHOUSE_FAULT_STALE_FILE` names, the file of a checkpoint whose path is in it has a stale handle.
//! `ROUNDHOUSE_FAULT_BACKEND=nccl` has processes on CPUs meet over a stand-in for NCCL, and
//! `ROUNDHOUSE_FAULT_COMMIT=device` has them commit steps as on a GPU, without the host waiting for the step's end.
//! `ROUNDHOUSE_FAULT_LOSS=20,21` makes the loss of the first sample of these steps NaN.
//! `ROUNDHOUSE_FAULT_DEVICE=rank:step` makes the forward pass of that rank fail there, in the words of a broken GPU.
//! `ROUNDHOUSE_FAULT_SUM` breaks a sum over the stand-in (`c10d/src/bridge/fake_nccl.cpp`).
//! `ROUNDHOUSE_FAULT_FLIP=rank:step` flips one bit of the first weight of that rank after that step.
//! `ROUNDHOUSE_FAULT_CHUNK_BYTES` is the size of a chunk in which a state is sent. Without the feature there is
//! nothing.

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before the forward pass of a step.
    Forward,
    /// Before the backward pass that synchronizes: the others are in theirs.
    Backward,
    /// After the backward pass, before the ranks agree: the others wait for its word.
    Agree,
    /// After all ranks have agreed to commit the step, before the optimizer changes the weights. Where the device
    /// decides, the host does not know yet what they have agreed on.
    Update,
    /// After it.
    Commit,
    /// When all ranks of a generation have gathered, before they connect; the step is the generation.
    Connect,
    /// While a generation is formed, before the state is shared; the step is the last committed one.
    Share,
    /// After the first chunk of the state was sent, or has come; the step is the process' own.
    State,
    /// When the process has the state and those that lacked it have received it, before all ranks know; the step is the
    /// state's.
    Received,
    /// When half of a checkpoint's part is written; the step is the checkpoint's.
    Checkpoint,
    /// When all parts and the manifest of a checkpoint are written, before it gets its name: rank 0.
    Complete,
    /// When a checkpoint has its name, before it may become the best one and old ones are deleted: rank 0.
    Named,
}

/// Ends or stops the process if it is told to here.
#[cfg(feature = "faults")]
pub fn point(point: Point, rank: u32, step: u64) {
    use signal_hook::consts::{SIGKILL, SIGSTOP};
    let here = format!("{rank}:{step}:{point:?}");
    for (variable, signal) in [
        ("ROUNDHOUSE_FAULT", SIGKILL),
        ("ROUNDHOUSE_FAULT_FREEZE", SIGSTOP),
    ] {
        if std::env::var(variable).is_ok_and(|told| told == here) {
            let _ = signal_hook::low_level::raise(signal);
        }
    }
    if let Ok(file) = std::env::var("ROUNDHOUSE_FAULT_FILE") {
        let told = std::fs::read_to_string(&file).unwrap_or_default();
        // Others that become this rank and come here after it do not die.
        if told.trim() == format!("{rank}:{point:?}") && std::fs::remove_file(file).is_ok() {
            let _ = signal_hook::low_level::raise(SIGKILL);
        }
    }
}

/// Makes a step last longer, if it is told to.
#[cfg(feature = "faults")]
pub fn slow_down() {
    let Ok(file) = std::env::var("ROUNDHOUSE_FAULT_STEP_FILE") else {
        return;
    };
    let index = std::env::var(roundhouse_contract::environment::WORKER_INDEX).unwrap_or_default();
    let told = std::fs::read_to_string(format!("{file}-{index}"))
        .or_else(|_| std::fs::read_to_string(file))
        .unwrap_or_default();
    if let Ok(milliseconds) = told.trim().parse() {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}

/// Makes a batch of an evaluation last longer, if it is told to.
#[cfg(feature = "faults")]
pub fn slow_evaluation_down() {
    let file = std::env::var("ROUNDHOUSE_FAULT_EVALUATION_FILE").unwrap_or_default();
    let told = std::fs::read_to_string(file).unwrap_or_default();
    if let Ok(milliseconds) = told.trim().parse() {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}

/// Whether the stand-in for NCCL is to be used.
#[cfg(feature = "faults")]
#[must_use]
pub fn stands_in_for_nccl() -> bool {
    std::env::var("ROUNDHOUSE_FAULT_BACKEND").is_ok_and(|told| told == "nccl")
}

/// Whether steps are to be committed as on a GPU.
#[cfg(feature = "faults")]
#[must_use]
pub fn commits_on_device() -> bool {
    std::env::var("ROUNDHOUSE_FAULT_COMMIT").is_ok_and(|told| told == "device")
}

/// They are not.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn commits_on_device() -> bool {
    false
}

/// Size of a chunk in which a state is sent, if it is told one.
#[cfg(feature = "faults")]
#[must_use]
pub fn chunk_bytes() -> Option<u64> {
    let told = std::env::var("ROUNDHOUSE_FAULT_CHUNK_BYTES").ok()?;
    told.parse().ok()
}

/// Makes an access to the checkpoint volume last longer, if it is told to.
#[cfg(feature = "faults")]
pub fn volume() {
    const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);
    let Ok(file) = std::env::var("ROUNDHOUSE_FAULT_VOLUME_FILE") else {
        return;
    };
    let told = || std::fs::read_to_string(&file).unwrap_or_default();
    while told().trim() == "hold" {
        std::thread::sleep(POLL_INTERVAL);
    }
    if let Ok(milliseconds) = told().trim().parse() {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}

/// The error of a stale handle of NFS, if a file of a checkpoint is to have one.
///
/// # Errors
/// This one.
#[cfg(feature = "faults")]
pub fn stale(path: &std::path::Path) -> std::io::Result<()> {
    let file = std::env::var("ROUNDHOUSE_FAULT_STALE_FILE").unwrap_or_default();
    let told = std::fs::read_to_string(file).unwrap_or_default();
    if path == std::path::Path::new(&told) {
        return Err(rustix::io::Errno::STALE.into());
    }
    Ok(())
}

/// None is stale.
///
/// # Errors
/// None.
#[cfg(not(feature = "faults"))]
pub const fn stale(_: &std::path::Path) -> std::io::Result<()> {
    Ok(())
}

/// Whether the loss of a step's first sample is to be NaN.
#[cfg(feature = "faults")]
#[must_use]
pub fn spoils_loss(step: u64) -> bool {
    let told = std::env::var("ROUNDHOUSE_FAULT_LOSS").unwrap_or_default();
    told.split(',').any(|told| told.parse() == Ok(step))
}

/// It is not.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn spoils_loss(_: u64) -> bool {
    false
}

/// The words of a GPU that breaks in the forward pass of a step, if it is told to.
#[cfg(feature = "faults")]
#[must_use]
pub fn device_failure(rank: u32, step: u64) -> Option<&'static str> {
    let told = std::env::var("ROUNDHOUSE_FAULT_DEVICE").unwrap_or_default();
    let breaks = told == format!("{rank}:{step}");
    breaks.then_some("CUDA error: uncorrectable ECC error encountered")
}

/// Whether a bit of a rank's weights flips after a step.
#[cfg(feature = "faults")]
#[must_use]
pub fn flips_bit(rank: u32, step: u64) -> bool {
    let told = std::env::var("ROUNDHOUSE_FAULT_FLIP").unwrap_or_default();
    told == format!("{rank}:{step}")
}

/// None flips.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn flips_bit(_: u32, _: u64) -> bool {
    false
}

/// It does not break.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn device_failure(_: u32, _: u64) -> Option<&'static str> {
    None
}

/// Does nothing.
#[cfg(not(feature = "faults"))]
pub const fn point(_: Point, _: u32, _: u64) {}

/// Does nothing.
#[cfg(not(feature = "faults"))]
pub const fn slow_down() {}

/// Does nothing.
#[cfg(not(feature = "faults"))]
pub const fn slow_evaluation_down() {}

/// Does nothing.
#[cfg(not(feature = "faults"))]
pub const fn volume() {}

/// None is told.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn chunk_bytes() -> Option<u64> {
    None
}
