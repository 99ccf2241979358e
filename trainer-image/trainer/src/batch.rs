//! What one pass computes on.

use tch::Tensor;

/// A part of a global batch, on the device of this process. It may be empty: a rank can have no sample of a
/// small batch. A source and a task of your own agree on kinds and shapes; nothing else looks into the tensors.
#[derive(Debug)]
pub struct Batch {
    /// Inputs of the model, with B first. Built-in sources give images `[B, C, H, W]` as 32-bit floats, or tokens
    /// `[B, T]` as 64-bit integers.
    pub inputs: Tensor,
    /// What the model should say, with B first. Built-in sources give 64-bit integers: classes `[B]`, or tokens `[B,
    /// T]`, where the target of a place is the token that belongs there: of `gpt2` the next one (the data is shifted
    /// already), of `bert` the one that a mask hides. -100 counts for nothing.
    pub targets: Tensor,
    /// B.
    pub num_samples: u64,
}
