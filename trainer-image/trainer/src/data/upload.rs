//! Uploads that overlap the computation. Batches go to the GPU on a separate stream. The host
//! launches a step while the GPU still computes the previous step, so the copy runs meanwhile. The
//! compute stream waits only for the event of the copy.

use roundhouse_c10d::{Event, Stream};
use tch::{Device, TchError, Tensor};

use crate::batch::Batch;

/// Copies a host tensor to a device through pinned memory, so the host does not wait for the copy.
/// On a CPU it returns the tensor itself.
///
/// # Errors
/// The device fails or runs out of memory.
pub fn upload(tensor: &Tensor, device: Device) -> Result<Tensor, TchError> {
    Ok(roundhouse_c10d::upload(tensor, device)?)
}

/// A stream for uploads to one device. On a CPU it does nothing.
#[derive(Debug)]
pub(crate) struct Uploads {
    device: Device,
    stream: Stream,
}

impl Uploads {
    /// A stream that waits for all work that this thread has enqueued so far, so that
    /// [`Self::beside`] can use its results.
    ///
    /// # Errors
    /// The device fails or does not exist.
    pub(crate) fn new(device: Device) -> Result<Self, TchError> {
        let stream = Stream::new(device)?;
        let uploads = Self { device, stream };
        uploads.wait_for_others()?;
        Ok(uploads)
    }

    /// Orders later work of the stream after all work that this thread has enqueued so far.
    fn wait_for_others(&self) -> roundhouse_c10d::Result<()> {
        let enqueued = Event::record(self.device)?;
        let _guard = self.stream.enter()?;
        enqueued.block()
    }

    /// Calls `make` on the stream. Work that this thread enqueues afterwards can use the batch.
    ///
    /// # Errors
    /// `make` fails, or the device fails.
    pub(crate) fn beside(
        &self,
        make: impl FnOnce() -> Result<Batch, TchError>,
    ) -> Result<Batch, TchError> {
        let guard = self.stream.enter()?;
        let outer = guard.outer();
        let batch = make()?;
        let uploaded = Event::record(self.device)?;
        drop(guard);
        uploaded.block()?;
        // The memory belongs to the upload stream, which must not reuse it while a step reads it.
        for tensor in [&batch.inputs, &batch.targets] {
            outer.uses(tensor)?;
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_batch_is_used_without_a_copy() {
        let uploads = Uploads::new(Device::Cpu).unwrap();
        let inputs = Tensor::from_slice(&[1_i64, 2]);
        let place = inputs.data_ptr();
        let made = uploads.beside(|| {
            Ok(Batch {
                targets: &inputs + 1,
                inputs,
                num_samples: 2,
            })
        });
        let made = made.unwrap();
        assert_eq!(made.inputs.data_ptr(), place);
        assert_eq!(Vec::<i64>::try_from(&made.targets).unwrap(), [2, 3]);
        let failed = uploads.beside(|| Err(TchError::Torch("no".to_owned())));
        assert!(failed.is_err());
    }
}
