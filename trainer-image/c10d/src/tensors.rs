//! Lists of tensors for C++.

use tch::Tensor;
use torch_sys::C_tensor;

/// The tensors' handles. They are good for as long as the tensors live; a `Tensor` is a handle whose contents can
/// change through a shared one, so a caller that writes into them takes `&mut [Tensor]` for itself.
pub(crate) fn pointers(tensors: &[Tensor]) -> Vec<*mut C_tensor> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    tensors.iter().map(pointer).collect()
}
