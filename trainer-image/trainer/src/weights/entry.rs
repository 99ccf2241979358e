//! A tensor that is being written to a file.

use std::borrow::Cow;

use safetensors::View;
use safetensors::tensor::Dtype;
use tch::{Device, Kind, TchError, Tensor};

/// A tensor's bytes in host memory, little-endian.
#[derive(Debug)]
pub(super) struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Entry {
    /// An entry for a tensor of 32-bit floats.
    pub(super) fn of_floats(tensor: &Tensor) -> Result<Self, TchError> {
        let values = tensor
            .f_detach()?
            .f_to_device(Device::Cpu)?
            .f_to_kind(Kind::Float)?
            .f_contiguous()?;
        let mut bytes = vec![0; values.numel() * size_of::<f32>()];
        values.f_copy_data_u8(&mut bytes, values.numel())?;
        let sizes = values.size();
        Ok(Self {
            dtype: Dtype::F32,
            shape: sizes
                .into_iter()
                .map(|size| usize::try_from(size).unwrap_or(0))
                .collect(),
            bytes,
        })
    }

    /// An entry for one 64-bit integer.
    pub(super) fn of_integer(value: u64) -> Self {
        Self {
            dtype: Dtype::I64,
            shape: Vec::new(),
            bytes: value.to_le_bytes().to_vec(),
        }
    }
}

impl View for Entry {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
