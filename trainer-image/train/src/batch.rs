//! What one pass computes on.

use tch::Tensor;

/// A part of a global batch, on the device of this process. It may be empty: a rank can have no sample of a
/// small batch.
#[derive(Debug)]
pub struct Batch {
    /// Inputs of the model: images `[B, C, H, W]` as 32-bit floats, tokens `[B, T]` as 64-bit integers.
    pub inputs: Tensor,
    /// What the model should say: classes `[B]` or tokens `[B, T]` as 64-bit integers; -100 counts for nothing.
    pub targets: Tensor,
    /// B.
    pub num_samples: u64,
}
