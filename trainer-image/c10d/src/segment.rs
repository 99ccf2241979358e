//! Parts of a model as C++ runs them.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::ffi;

/// Computes the output from an activation and parameters.
type Segment = Box<dyn FnMut(&Tensor, Vec<Tensor>) -> Result<Tensor, TchError> + Send>;

/// The segment for the bridge, which frees it once.
pub(crate) fn raw<F>(segment: F) -> ffi::RhSegment
where
    F: FnMut(&Tensor, Vec<Tensor>) -> Result<Tensor, TchError> + Send + 'static,
{
    let segment: Segment = Box::new(segment);
    ffi::RhSegment {
        context: Box::into_raw(Box::new(segment)).cast(),
        run,
        free,
    }
}

extern "C" fn run(
    context: *mut c_void,
    inputs: *const *mut C_tensor,
    count: usize,
    output: *mut *mut C_tensor,
    words: *mut ffi::RhWords,
) -> bool {
    // SAFETY: C++ passes `count` live tensors and the context that `raw` created. It runs a
    // segment on one thread at a time.
    let (segment, inputs) = unsafe {
        (
            &mut *context.cast::<Segment>(),
            std::slice::from_raw_parts(inputs, count),
        )
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the tensors are live; the handles are copied.
        let handle = |raw: &*mut C_tensor| unsafe { Tensor::clone_from_ptr(*raw) };
        let (activation, parameters) = inputs
            .split_first()
            .ok_or_else(|| TchError::Torch("the segment has no input".to_owned()))?;
        segment(&handle(activation), parameters.iter().map(handle).collect())
    }));
    let failure = match outcome {
        Ok(Ok(tensor)) => {
            // SAFETY: `output` is valid for a write. C++ takes ownership of the tensor, which tch
            // created with C++'s `new`.
            unsafe { *output = ManuallyDrop::new(tensor).as_ptr().cast_mut() };
            return true;
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("panic in a segment: {}", panic_message(&*panic)),
    };
    // SAFETY: `words` lives during this call; the text is copied.
    unsafe { ffi::rh_segment_failed(words, failure.as_ptr().cast(), failure.len()) };
    false
}

extern "C" fn free(context: *mut c_void) {
    // SAFETY: `raw` created the context, and this frees it once. A panic must not unwind into
    // C++.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe {
        drop(Box::from_raw(context.cast::<Segment>()));
    }));
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}
