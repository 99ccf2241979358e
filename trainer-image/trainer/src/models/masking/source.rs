//! A source that masks the sequences of another source.

use std::ops::Range;

use roundhouse_elastic::Permutation;
use tch::{Device, TchError, Tensor};

use super::{Draw, Masked, Masking};
use crate::batch::Batch;
use crate::data::upload::Uploads;
use crate::source::{Source, SourceError};

/// Masks the sequences of another source; the masks are a function of (seed, epoch, sample).
///
/// The mask token is the last of the vocabulary.
#[derive(Debug)]
pub struct MaskedSource {
    source: Box<dyn Source>,
    vocabulary: u32,
    seed: u64,
    device: Device,
    uploads: Uploads,
}

impl MaskedSource {
    /// Masks the inputs of a source of sequences `[B, T]` with tokens below `vocabulary`, and moves
    /// the result to `device`.
    ///
    /// The source's own batches should be in host memory, where the masks are drawn. The host would
    /// have to read tokens back from a GPU, and would wait for the GPU in each step.
    ///
    /// # Errors
    /// The device fails or does not exist.
    pub fn new(
        source: Box<dyn Source>,
        vocabulary: u32,
        seed: u64,
        device: Device,
    ) -> Result<Self, TchError> {
        Ok(Self {
            source,
            vocabulary,
            seed,
            device,
            uploads: Uploads::new(device)?,
        })
    }
}

impl Source for MaskedSource {
    fn num_samples(&self) -> u64 {
        self.source.num_samples()
    }

    fn describe(&self) -> String {
        self.source.describe()
    }

    fn expect(&mut self, coming: &[(Range<u64>, Permutation)]) {
        self.source.expect(coming);
    }

    fn tokens_per_sample(&self) -> Option<u64> {
        self.source.tokens_per_sample()
    }

    fn num_skipped(&self) -> u64 {
        self.source.num_skipped()
    }

    fn num_by_part(&self) -> &[(String, u64)] {
        self.source.num_by_part()
    }

    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        let batch = self.source.fetch(places.clone(), order)?;
        let samples = places.filter_map(|place| order.at(place));
        let masking = Masking {
            mask_token: self.vocabulary.saturating_sub(1),
            vocabulary: self.vocabulary.max(1),
            special: &[],
        };
        let size = batch.inputs.size();
        let length = usize::try_from(size.get(1).copied().unwrap_or(1)).unwrap_or(1);
        let tokens = Vec::<i64>::try_from(batch.inputs.f_reshape([-1])?)?;
        let (mut inputs, mut targets) = (Vec::with_capacity(tokens.len()), Vec::new());
        for (sample, row) in samples.zip(tokens.chunks_exact(length.max(1))) {
            let row: Vec<u32> = row
                .iter()
                .map(|token| u32::try_from(*token).unwrap_or(0))
                .collect();
            let draw = Draw {
                seed: self.seed,
                epoch: order.epoch(),
                sample,
            };
            let Masked {
                inputs: own,
                targets: wanted,
            } = masking.mask(&row, draw);
            inputs.extend(own);
            targets.extend(wanted);
        }
        let tensor = |values: &[i64]| -> Result<Tensor, TchError> {
            let host = Tensor::f_from_slice(values)?.f_reshape(&size)?;
            Ok(roundhouse_c10d::upload(&host, self.device)?)
        };
        let masked = || {
            Ok(Batch {
                inputs: tensor(&inputs)?,
                targets: tensor(&targets)?,
                num_samples: batch.num_samples,
            })
        };
        Ok(self.uploads.beside(masked)?)
    }
}
