//! The samples of one forward and backward pass.

use tch::Tensor;

/// A part of a global batch, on the device of this process. It is empty if this rank has no sample
/// of a small batch. A source and a task agree on types and shapes; the training loop does not read
/// the tensors.
#[derive(Debug)]
pub struct Batch {
    /// Inputs of the model; the first dimension is the batch B. Built-in sources give images
    /// `[B, C, H, W]` as 32-bit floats, or tokens `[B, T]` as 64-bit integers.
    pub inputs: Tensor,
    /// Expected outputs; the first dimension is the batch B. Built-in sources give 64-bit integers:
    /// classes `[B]`, or tokens `[B, T]`. The target of a place is the next token for `gpt2`,
    /// `llama` and `switch` (the data is shifted already), and the masked token for `bert`. Targets
    /// of -100 are ignored.
    pub targets: Tensor,
    /// Number of samples B.
    pub num_samples: u64,
}
