//! A mix: several data sets in one, each with an exact share of every epoch.
//!
//! An epoch has as many samples as all data sets together. The share of each data set follows from
//! its weight by the largest remainder method, so that the shares add up. A data set with a high
//! weight is passed several times in an epoch, one with a low weight in part. The next epoch
//! continues where this one ends, and each pass has its own order.
//!
//! The order of a mix has two levels if a data set is read in blocks, such as row groups of
//! Parquet. The mix's blocks are then consecutive places of the passes, and its windows mix several
//! of them. So that few row groups are needed at a time, a pass permutes only the blocks of its
//! data set and the samples within each block; the windows of the mix do the rest.

use std::sync::Arc;

use roundhouse_elastic::{Blocks, Permutation};

use crate::dataset::{Dataset, Item, Scratch};
use crate::error::DataError;
use crate::left_out::counted;

/// A data set of a mix.
#[derive(Clone, Debug)]
pub struct Part {
    /// Name of the data set, for reports.
    pub name: String,
    /// The data set itself.
    pub dataset: Arc<dyn Dataset>,
    /// Weight of the data set.
    pub weight: f64,
}

/// The share of a data set in an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Name of the data set.
    pub name: String,
    /// Samples in each epoch of the mix.
    pub num_samples: u64,
    /// Passes over the data set in each epoch of the mix.
    pub epochs: f64,
}

/// Several data sets in one.
#[derive(Debug)]
pub struct Mix {
    parts: Vec<Part>,
    /// Number of the first sample of each part, and the number of samples at the end.
    starts: Vec<u64>,
    item: Item,
    num_classes: Option<u32>,
    seed: u64,
    /// The two-level order of a pass over each part, if it has one.
    blocks: Vec<Option<Blocks>>,
}

/// Divides a number in proportion to weights. The shares add up to the number: the rest after
/// rounding down goes to the shares with the largest remainders (Hamilton's method), to the
/// first of equal ones.
#[must_use]
pub fn divide(total: u64, weights: &[f64]) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let exact = weights.iter().map(|weight| total as f64 * (weight / sum));
    let exact: Vec<f64> = exact.collect();
    let mut parts: Vec<u64> = exact.iter().map(|exact| whole(*exact)).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|left, right| exact[*right].fract().total_cmp(&exact[*left].fract()));
    let left = total.saturating_sub(parts.iter().sum());
    for at in order
        .into_iter()
        .cycle()
        .take(usize::try_from(left).unwrap_or(0))
    {
        parts[at] += 1;
    }
    parts
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "parts of a count are not negative and below 2^53"
)]
const fn whole(exact: f64) -> u64 {
    exact as u64
}

/// Blocks of one pass, one after the other, because the windows of the mix contain several of them.
fn natural_blocks(dataset: &dyn Dataset) -> Option<Blocks> {
    let num_samples = dataset.samples_per_block();
    (num_samples > 1).then_some(Blocks {
        num_samples,
        num_mixed: 1,
    })
}

impl Mix {
    /// Mixes data sets. `blocks` is the configured two-level order of each data set. Without it, a
    /// data set that is read in blocks is passed block by block, and any other data set in an
    /// order of one level.
    ///
    /// # Errors
    /// Returns an error if there is no part, or if the samples of the parts have different shapes.
    pub fn new(parts: Vec<Part>, seed: u64, blocks: Option<Blocks>) -> Result<Self, DataError> {
        let Some(first) = parts.first() else {
            return Err(DataError::config("data.mix", "name at least one data set"));
        };
        let item = first.dataset.item().clone();
        for part in &parts {
            if *part.dataset.item() != item {
                let reason = format!(
                    "samples of {} have another shape than those of {}",
                    part.name, first.name
                );
                return Err(DataError::config("data.mix", reason));
            }
        }
        let num_classes = parts
            .iter()
            .filter_map(|part| part.dataset.num_classes())
            .max();
        let total = parts.iter().map(|part| part.dataset.num_samples()).sum();
        let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
        let mut starts = vec![0];
        for count in divide(total, &weights) {
            starts.push(starts.last().unwrap_or(&0) + count);
        }
        let blocks = parts
            .iter()
            .map(|part| blocks.or_else(|| natural_blocks(part.dataset.as_ref())));
        Ok(Self {
            blocks: blocks.collect(),
            parts,
            starts,
            item,
            num_classes,
            seed,
        })
    }

    /// Returns the share of each data set in an epoch.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        let counts = self.starts.windows(2).map(|pair| pair[1] - pair[0]);
        let share = |(part, num_samples): (&Part, u64)| Share {
            name: part.name.clone(),
            num_samples,
            epochs: num_samples as f64 / part.dataset.num_samples() as f64,
        };
        self.parts.iter().zip(counts).map(share).collect()
    }

    /// Returns the part of a sample in an epoch, the number within the part, and the
    /// pass over the part.
    fn find(&self, sample: u64, epoch: u64) -> Option<(&Part, u64, u64)> {
        let at = self.part_of(sample)?;
        let part = &self.parts[at];
        let count = self.starts[at + 1] - self.starts[at];
        let place = epoch
            .checked_mul(count)?
            .checked_add(sample - self.starts[at])?;
        let num_samples = part.dataset.num_samples();
        let (pass, place) = (place / num_samples, place % num_samples);
        let seed = self.seed.wrapping_add(at as u64);
        let order = match self.blocks[at] {
            Some(blocks) => Permutation::in_blocks(num_samples, seed, pass, blocks),
            None => Permutation::new(num_samples, seed, pass),
        };
        Some((part, order.at(place)?, pass))
    }
}

impl Dataset for Mix {
    fn num_samples(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn describe(&self) -> String {
        let parts = self.parts.iter().zip(self.shares()).map(|(part, share)| {
            let Share {
                name,
                num_samples,
                epochs: _,
            } = share;
            let whole = part.dataset.describe();
            format!("; {num_samples} from {name} ({whole})")
        });
        let samples = counted(self.num_samples(), "sample", "samples");
        format!("{samples} in an epoch{}", parts.collect::<String>())
    }

    fn item(&self) -> &Item {
        &self.item
    }

    fn num_classes(&self) -> Option<u32> {
        self.num_classes
    }

    fn read(
        &self,
        sample: u64,
        epoch: u64,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError> {
        let Some((part, sample, pass)) = self.find(sample, epoch) else {
            return Err(DataError::NoSuchSample {
                sample,
                num_samples: self.num_samples(),
            });
        };
        part.dataset.read(sample, pass, scratch, into)
    }

    fn part_names(&self) -> Vec<String> {
        self.parts.iter().map(|part| part.name.clone()).collect()
    }

    fn part_of(&self, sample: u64) -> Option<usize> {
        let at = self.starts.partition_point(|start| *start <= sample);
        at.checked_sub(1).filter(|at| *at < self.parts.len())
    }

    fn samples_per_block(&self) -> u64 {
        let blocks = self
            .parts
            .iter()
            .map(|part| part.dataset.samples_per_block());
        blocks.max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests;
