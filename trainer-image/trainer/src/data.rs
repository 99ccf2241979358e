//! Data of any format as a [`Source`]: batches in host memory become tensors on the device.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use roundhouse_data::prefetch::Options;
use roundhouse_data::{Dataset, HostBatch, Item, Prefetcher, Request};
use roundhouse_elastic::Permutation;
use roundhouse_report::say_error;
use tch::{Device, Kind, TchError, Tensor};

use crate::batch::Batch;
use crate::source::{Source, SourceError};

pub(crate) mod upload;

use upload::Uploads;

/// Samples of a data set, read ahead by threads, as tensors on a device.
#[derive(Debug)]
pub struct HostSource {
    prefetcher: Prefetcher,
    device: Device,
    /// Mean and standard deviation `[C, 1, 1]` for pixels that are bytes.
    normalize: Option<(Tensor, Tensor)>,
    uploads: Uploads,
    is_channels_last: bool,
    num_skipped: u64,
    /// Number of samples fetched from each data set of a mix.
    num_by_part: Vec<(String, u64)>,
}

/// Number of corrupt samples that the log names; all of them are counted.
const MOST_NAMED: u64 = 10;

impl HostSource {
    /// Reads a data set. `normalize` is the mean and the standard deviation per channel, for pixels
    /// from 0 to 1.
    ///
    /// # Errors
    /// The system starts no thread, or the device cannot be used.
    pub fn new(
        dataset: Arc<dyn Dataset>,
        options: Options,
        normalize: Option<(&[f64], &[f64])>,
        device: Device,
    ) -> Result<Self, SourceError> {
        let names = dataset.part_names().into_iter();
        let num_by_part = names.map(|name| (name, 0)).collect();
        let prefetcher = Prefetcher::new(dataset, options).map_err(|error| SourceError::Data {
            path: PathBuf::new(),
            reason: format!("threads cannot be started: {error}"),
        })?;
        let tensor = |values: &[f64]| {
            let values = Tensor::f_from_slice(values)?.f_to_kind(Kind::Float)?;
            values.f_reshape([-1, 1, 1])?.f_to_device(device)
        };
        let normalize = match normalize {
            Some((mean, std)) => Some((tensor(mean)?, tensor(std)?)),
            None => None,
        };
        Ok(Self {
            prefetcher,
            device,
            normalize,
            uploads: Uploads::new(device)?,
            is_channels_last: false,
            num_skipped: 0,
            num_by_part,
        })
    }

    fn count(&mut self, request: &Request, host: &HostBatch) {
        for skipped in &host.skipped {
            self.num_skipped += 1;
            if self.num_skipped <= MOST_NAMED {
                say_error(&format!("a corrupt sample is skipped: {}", skipped.reason));
            }
        }
        if self.num_by_part.is_empty() {
            return;
        }
        let dataset = self.prefetcher.dataset();
        for part in request.samples.iter().map(|it| dataset.part_of(*it)) {
            if let Some((_, number)) = part.and_then(|part| self.num_by_part.get_mut(part)) {
                *number += 1;
            }
        }
    }

    fn batch(&self, host: &HostBatch) -> Result<Batch, TchError> {
        let num_samples = i64::try_from(host.num_samples()).unwrap_or(i64::MAX);
        let kind = match host.item {
            Item::Pixels { .. } => Kind::Uint8,
            Item::Normalized { .. } => Kind::Float,
            // libtorch has no arithmetic on unsigned 32-bit numbers; a token is below 2^31.
            Item::Tokens { .. } => Kind::Int,
        };
        let mut sizes = vec![num_samples];
        let shape = host.item.shape();
        sizes.extend(
            shape
                .iter()
                .map(|size| i64::try_from(*size).unwrap_or(i64::MAX)),
        );
        let values = roundhouse_c10d::upload_bytes(&host.values, &sizes, kind, self.device)?;
        let (inputs, targets) = match host.item {
            Item::Tokens { context } => {
                let (tokens, context) = (values.f_to_kind(Kind::Int64)?, i64::from(context));
                (
                    tokens.f_narrow(1, 0, context)?,
                    tokens.f_narrow(1, 1, context)?,
                )
            }
            Item::Normalized { .. } => (values, self.labels(host)?),
            Item::Pixels { .. } => (self.normalized(&values)?, self.labels(host)?),
        };
        Ok(Batch {
            inputs,
            targets,
            num_samples: host.num_samples() as u64,
        })
    }

    /// Bytes `[B, H, W, C]` as floats `[B, C, H, W]` in the memory format channels last, without a
    /// copy.
    fn normalized(&self, pixels_bhwc: &Tensor) -> Result<Tensor, TchError> {
        let mut pixels_bchw = pixels_bhwc.f_permute([0, 3, 1, 2])?;
        if !self.is_channels_last {
            pixels_bchw = pixels_bchw.f_contiguous()?;
        }
        let scaled = pixels_bchw
            .f_to_kind(Kind::Float)?
            .f_mul_scalar_(1.0 / 255.0)?;
        match &self.normalize {
            Some((mean, std)) => scaled.f_sub(mean)?.f_div(std),
            None => Ok(scaled),
        }
    }

    fn labels(&self, host: &HostBatch) -> Result<Tensor, TchError> {
        self.uploaded(&Tensor::f_from_slice(&host.labels)?)
    }

    fn uploaded(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        upload::upload(tensor, self.device)
    }
}

impl Source for HostSource {
    fn num_samples(&self) -> u64 {
        self.prefetcher.dataset().num_samples()
    }

    fn describe(&self) -> String {
        self.prefetcher.dataset().describe()
    }

    fn expect(&mut self, coming: &[(Range<u64>, Permutation)]) {
        let coming = coming.to_vec();
        let requests = coming
            .into_iter()
            .map(|(places, order)| Request::of(places, &order));
        self.prefetcher.expect(requests);
    }

    fn lay_channels_last(&mut self) {
        self.is_channels_last = true;
    }

    fn tokens_per_sample(&self) -> Option<u64> {
        match *self.prefetcher.dataset().item() {
            Item::Tokens { context } => Some(context.into()),
            Item::Pixels { .. } | Item::Normalized { .. } => None,
        }
    }

    fn num_skipped(&self) -> u64 {
        self.num_skipped
    }

    fn num_by_part(&self) -> &[(String, u64)] {
        &self.num_by_part
    }

    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        let request = Request::of(places, order);
        let host = self.prefetcher.fetch(&request)?;
        self.count(&request, &host);
        let batch = self.uploads.beside(|| self.batch(&host))?;
        self.prefetcher.recycle(host);
        Ok(batch)
    }
}

#[cfg(test)]
mod tests;
