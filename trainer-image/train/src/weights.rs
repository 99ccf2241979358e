//! Writes the final weights as a safetensors file.

use std::path::Path;

use tch::{Device, TchError, Tensor};

use crate::failure::Failure;
use crate::parameters::Parameters;

/// Writes all parameters under their names, by rename: a reader never sees half a file.
///
/// # Errors
/// [`Failure::Torch`] when a tensor cannot be written, [`roundhouse_member::Failure::Io`] when the rename fails.
pub fn save(path: &Path, parameters: &Parameters) -> Result<(), Failure> {
    let named: Vec<(&str, Tensor)> = parameters
        .iter()
        .map(|(name, tensor)| Ok((name, tensor.f_detach()?.f_to_device(Device::Cpu)?)))
        .collect::<Result<_, TchError>>()?;
    let partial = path.with_extension("partial");
    Tensor::write_safetensors(&named, &partial)?;
    std::fs::rename(&partial, path).map_err(Failure::io(path))
}
