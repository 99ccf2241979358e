//! The data as a [`Source`]: windows of measured water levels.

use std::ops::Range;

use roundhouse_trainer::random::mix;
use roundhouse_trainer::source::SourceError;
use roundhouse_trainer::tch::{Device, Kind, TchError, Tensor};
use roundhouse_trainer::{Batch, Permutation, Source, upload};

use crate::harbour::Harbour;
use crate::options::Options;

/// All windows of a range of hours. Sample i starts at hour i: its inputs are the levels of
/// `past_hours` hours, and its targets are the levels of the next `future_hours` hours.
#[derive(Debug)]
pub struct Windows {
    /// `[N, T]` in metres, where T = past + future, on the device of the process. It is a view:
    /// each level is stored once, although T windows contain it.
    levels_nt: Tensor,
    past_hours: i64,
    future_hours: i64,
    num_samples: u64,
}

impl Windows {
    /// Returns the training data and the test data. The hours of the test data follow those of the
    /// training data.
    ///
    /// # Errors
    /// The device has too little memory.
    pub fn splits(
        harbour: &Harbour,
        options: &Options,
        seed: u64,
        device: Device,
    ) -> Result<[Self; 2], TchError> {
        let start_of_test = options.train_hours;
        let end = start_of_test + options.test_hours;
        let measured = |hours: Range<u32>| -> Vec<f64> {
            let level = |hour| harbour.level(hour) + options.noise * normal(seed, hour);
            hours.map(level).collect()
        };
        Ok([
            Self::new(&measured(0..start_of_test), options, device)?,
            Self::new(&measured(start_of_test..end), options, device)?,
        ])
    }

    fn new(levels: &[f64], options: &Options, device: Device) -> Result<Self, TchError> {
        let (past_hours, future_hours) = (options.past_hours.into(), options.future_hours.into());
        let levels = Tensor::f_from_slice(levels)?.f_to_kind(Kind::Float)?;
        let levels_nt = levels
            .f_to_device(device)?
            .f_unfold(0, past_hours + future_hours, 1)?;
        Ok(Self {
            num_samples: levels_nt.size()[0].unsigned_abs(),
            levels_nt,
            past_hours,
            future_hours,
        })
    }
}

impl Source for Windows {
    fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// `order` maps places of this epoch to samples. The samples depend on nothing else, so each is
    /// used once per epoch, for every number of processes.
    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        let samples = places.filter_map(|place| order.at(place));
        let samples: Vec<i64> = samples.map(u64::cast_signed).collect();
        // `to_device` would make the host wait for the GPU in each step.
        let index = upload(&Tensor::f_from_slice(&samples)?, self.levels_nt.device())?;
        let levels_bt = self.levels_nt.f_index_select(0, &index)?;
        Ok(Batch {
            inputs: levels_bt.f_narrow(1, 0, self.past_hours)?,
            targets: levels_bt.f_narrow(1, self.past_hours, self.future_hours)?,
            num_samples: samples.len() as u64,
        })
    }
}

/// Returns the error of an hour's measurement, a nearly normal number with mean 0 and variance 1.
/// It depends on seed and hour alone, so all processes read the same data, also after a restart.
fn normal(seed: u64, hour: u32) -> f64 {
    let mut state = mix(seed ^ mix(hour.into()));
    // The sum of 12 uniform numbers has the variance 1.
    let uniform = |_| {
        state = mix(state);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..12).map(uniform).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(num_hours: u16) -> Windows {
        let options = Options {
            past_hours: 3,
            future_hours: 2,
            ..Options::default()
        };
        let levels: Vec<f64> = (0..num_hours).map(f64::from).collect();
        Windows::new(&levels, &options, Device::Cpu).unwrap()
    }

    #[test]
    fn sample_i_starts_at_hour_i() {
        let mut source = windows(8);
        assert_eq!(source.num_samples(), 4);
        let batch = source.fetch(1..4, &Permutation::in_order(4)).unwrap();
        let rows = |tensor: &Tensor| Vec::<Vec<f32>>::try_from(tensor).unwrap();
        assert_eq!(
            rows(&batch.inputs),
            [[1., 2., 3.], [2., 3., 4.], [3., 4., 5.]]
        );
        assert_eq!(rows(&batch.targets), [[4., 5.], [5., 6.], [6., 7.]]);
    }

    #[test]
    fn fetch_follows_the_order_and_can_be_empty() {
        let mut source = windows(100);
        let order = Permutation::new(source.num_samples(), 3, 1);
        let batch = source.fetch(10..20, &order).unwrap();
        let first = Vec::<f64>::try_from(batch.inputs.select(1, 0)).unwrap();
        let expected: Vec<u64> = (10..20).filter_map(|place| order.at(place)).collect();
        assert_eq!(
            first,
            expected.iter().map(|it| *it as f64).collect::<Vec<_>>()
        );
        let empty = source.fetch(7..7, &order).unwrap();
        assert_eq!((empty.num_samples, empty.inputs.size()), (0, vec![0, 3]));
    }

    #[test]
    fn noise_is_standard_normal_and_depends_on_the_seed() {
        let draws: Vec<f64> = (0..20_000).map(|hour| normal(5, hour)).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|it| it * it).sum::<f64>() / 20_000.0;
        assert!(
            mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
        assert!((normal(5, 1) - normal(6, 1)).abs() > 1e-9);
    }
}
