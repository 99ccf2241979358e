//! A source that converts the images of another source to the memory format channels last.

use std::ops::Range;

use roundhouse_c10d::format::{self, MemoryFormat};
use roundhouse_elastic::Permutation;
use tch::TchError;

use super::{Source, SourceError};
use crate::batch::Batch;

/// Wraps a source and converts its images `[B, C, H, W]` to channels last. Their values do not
/// change.
#[derive(Debug)]
pub(crate) struct ChannelsLast(pub(crate) Box<dyn Source>);

impl Source for ChannelsLast {
    fn num_samples(&self) -> u64 {
        self.0.num_samples()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn expect(&mut self, coming: &[(Range<u64>, Permutation)]) {
        self.0.expect(coming);
    }

    fn tokens_per_sample(&self) -> Option<u64> {
        self.0.tokens_per_sample()
    }

    fn num_skipped(&self) -> u64 {
        self.0.num_skipped()
    }

    fn num_by_part(&self) -> &[(String, u64)] {
        self.0.num_by_part()
    }

    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        let batch = self.0.fetch(places, order)?;
        if batch.inputs.dim() != 4 {
            return Ok(batch);
        }
        let inputs = format::contiguous(&batch.inputs, MemoryFormat::ChannelsLast)
            .map_err(|error| TchError::Torch(error.message))?;
        Ok(Batch { inputs, ..batch })
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    /// Batches of the given shape.
    #[derive(Debug)]
    struct Of(Vec<i64>, Vec<(String, u64)>);

    impl Source for Of {
        fn num_samples(&self) -> u64 {
            9
        }

        fn describe(&self) -> String {
            "nine".to_owned()
        }

        fn num_skipped(&self) -> u64 {
            3
        }

        fn tokens_per_sample(&self) -> Option<u64> {
            Some(5)
        }

        fn num_by_part(&self) -> &[(String, u64)] {
            &self.1
        }

        fn fetch(&mut self, places: Range<u64>, _: &Permutation) -> Result<Batch, SourceError> {
            let num_samples = places.end - places.start;
            let shape = [&[num_samples.cast_signed()], self.0.as_slice()].concat();
            let length = shape.iter().product::<i64>();
            let inputs =
                Tensor::f_arange(length, (Kind::Float, Device::Cpu))?.f_view(shape.as_slice())?;
            let targets = Tensor::f_zeros([num_samples.cast_signed()], (Kind::Int64, Device::Cpu))?;
            Ok(Batch {
                inputs,
                targets,
                num_samples,
            })
        }
    }

    #[test]
    fn images_keep_their_values_and_others_their_layout() {
        let order = Permutation::new(9, 7, 0);
        for (shape, is_image) in [(vec![3, 4, 5], true), (vec![6], false)] {
            let parts = vec![("part".to_owned(), 4)];
            let mut plain = Of(shape.clone(), parts.clone());
            let mut source = ChannelsLast(Box::new(Of(shape, parts.clone())));
            assert_eq!(source.num_samples(), 9);
            assert_eq!(
                (source.num_skipped(), source.tokens_per_sample()),
                (3, Some(5))
            );
            assert_eq!(source.num_by_part(), parts);
            assert_eq!(source.describe(), "nine");
            for places in [2..6, 4..4] {
                let expected = plain.fetch(places.clone(), &order).unwrap();
                let found = source.fetch(places, &order).unwrap();
                assert_eq!(found.num_samples, expected.num_samples);
                assert_eq!(found.inputs, expected.inputs);
                let is_last = is_image && format::is_channels_last(&found.inputs).unwrap();
                assert_eq!(is_last, is_image);
            }
        }
    }
}
