//! Uploads beside the computation. A batch goes to the GPU on a stream of its own. The host launches a step while the GPU
//! still computes the one before, so the copy runs meanwhile, and the stream that computes waits for its event alone.

use roundhouse_c10d::{Event, Stream};
use tch::{Device, TchError, Tensor};

use crate::batch::Batch;

/// Copies a tensor of the host to a device, by way of pinned memory, so that the host does not wait for the copy. On a
/// CPU it is the tensor itself.
///
/// # Errors
/// The device has failed, or has too little memory.
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
    /// What is on the device by now can be used in [`Self::beside`].
    ///
    /// # Errors
    /// The device has failed or is not there.
    pub(crate) fn new(device: Device) -> Result<Self, TchError> {
        let stream = Stream::new(device)?;
        let uploads = Self { device, stream };
        uploads.wait_for_others()?;
        Ok(uploads)
    }

    /// Work on the stream comes after all that the thread has enqueued for the device so far.
    fn wait_for_others(&self) -> roundhouse_c10d::Result<()> {
        let enqueued = Event::record(self.device)?;
        let _guard = self.stream.enter()?;
        enqueued.block()
    }

    /// Makes a batch on the stream. What the thread enqueues after it can use the batch.
    ///
    /// # Errors
    /// Those of `make`, or the device has failed.
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
        // Its memory belongs to the side stream, which must not write to it again while a step reads it.
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
    fn on_a_cpu_a_batch_is_made_where_it_is_used() {
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
