//! The part of a tensor that one of several processes has.

use std::ops::Range;

use roundhouse_elastic::state::layout::Runs;
use tch::{TchError, Tensor};

/// How processes divide a tensor: they cut a dimension, which consists of equal groups, of which
/// each process has an equal share. Three groups are the queries, keys and values of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) dim: usize,
    pub(crate) groups: i64,
}

/// The part of a tensor that a process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    whole: Vec<i64>,
    cut: Cut,
    /// What the process has of each group.
    range: Range<i64>,
}

impl Part {
    /// The part of the process with this index of a number of processes, for a tensor of this
    /// shape.
    pub(crate) fn new(whole: &[i64], cut: Cut, process: (i64, i64)) -> Self {
        let part = Self {
            whole: whole.to_vec(),
            cut,
            range: 0..0,
        };
        part.of_process(process)
    }

    /// The part of another process.
    pub(crate) fn of_process(&self, (index, size): (i64, i64)) -> Self {
        let group = self.group();
        Self {
            range: group * index / size..group * (index + 1) / size,
            ..self.clone()
        }
    }

    /// The shape of the whole tensor.
    pub(crate) fn whole_shape(&self) -> &[i64] {
        &self.whole
    }

    /// What the process has of each group of the dimension that is cut.
    pub(crate) const fn range(&self) -> &Range<i64> {
        &self.range
    }

    /// The shape of the part.
    pub(crate) fn shape(&self) -> Vec<i64> {
        let mut shape = self.whole.clone();
        shape[self.cut.dim] = self.cut.groups * self.num_of_group();
        shape
    }

    /// Size of a group.
    fn group(&self) -> i64 {
        self.whole[self.cut.dim] / self.cut.groups
    }

    const fn num_of_group(&self) -> i64 {
        self.range.end - self.range.start
    }

    /// Products of the sizes before and after the dimension that is cut.
    fn around(&self) -> (i64, i64) {
        let (before, after) = self.whole.split_at(self.cut.dim);
        (before.iter().product(), after[1..].iter().product())
    }

    /// The place of the part in a whole tensor: a view.
    fn view(&self, whole: &Tensor) -> Result<Tensor, TchError> {
        let (outer, inner) = self.around();
        whole
            .f_view([outer, self.cut.groups, self.group(), inner])?
            .f_narrow(2, self.range.start, self.num_of_group())
    }

    /// A copy of the part of a whole tensor.
    pub(crate) fn of(&self, whole: &Tensor) -> Result<Tensor, TchError> {
        let mut own = Tensor::f_empty(self.shape(), (whole.kind(), whole.device()))?;
        own.f_copy_(&self.view(&whole.f_contiguous()?)?.f_reshape(self.shape())?)?;
        Ok(own)
    }

    /// Copies the part to its place in a whole tensor.
    pub(crate) fn copy_to(&self, whole: &Tensor, own: &Tensor) -> Result<(), TchError> {
        let mut place = self.view(whole)?;
        let size = place.size();
        place.f_copy_(&own.f_view(&*size)?)
    }

    /// The bytes of the part in the whole tensor, for elements of so many bytes. Their order is
    /// that of the part's elements.
    pub(crate) fn runs(&self, element: u64) -> Runs {
        let (outer, inner) = self.around();
        let bytes = |elements: i64| elements.cast_unsigned() * element;
        Runs {
            start: bytes(self.range.start * inner),
            length: bytes(self.num_of_group() * inner),
            count: (outer * self.cut.groups).cast_unsigned(),
            stride: bytes(self.group() * inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.flatten(0, -1)).unwrap()
    }

    /// The parts of all processes are the whole, whatever is cut, and the runs of bytes have the
    /// elements of the part in their order.
    #[test]
    fn parts_of_all_processes_are_the_whole() {
        let whole = Tensor::arange(6 * 12 * 2, (Kind::Int64, Device::Cpu)).reshape([6, 12, 2]);
        for (dim, groups) in [(0, 1), (0, 3), (1, 1), (1, 3), (2, 1)] {
            for size in 1..=4 {
                let back = whole.zeros_like();
                let mut count = 0;
                for index in 0..size {
                    let cut = Cut { dim, groups };
                    let part = Part::new(&whole.size(), cut, (index, size));
                    let own = part.of(&whole).unwrap();
                    assert_eq!(own.size(), part.shape());
                    part.copy_to(&back, &own).unwrap();
                    count += own.numel();
                    let runs = part.runs(8);
                    let all = numbers(&whole);
                    let of_runs = (0..runs.count).flat_map(|run| {
                        let start = usize::try_from((runs.start + run * runs.stride) / 8).unwrap();
                        let length = usize::try_from(runs.length / 8).unwrap();
                        all[start..start + length].to_vec()
                    });
                    assert_eq!(of_runs.collect::<Vec<_>>(), numbers(&own));
                }
                assert_eq!(count, whole.numel(), "{dim}, {groups}, {size}");
                assert_eq!(back, whole, "{dim}, {groups}, {size}");
            }
        }
    }

    #[test]
    fn each_process_has_queries_keys_and_values_of_its_heads() {
        let matrix = Tensor::arange(12, (Kind::Int64, Device::Cpu)).reshape([1, 12]);
        let cut = Cut { dim: 1, groups: 3 };
        let own =
            [0, 1].map(|index| numbers(&Part::new(&[1, 12], cut, (index, 2)).of(&matrix).unwrap()));
        assert_eq!(own, [vec![0, 1, 4, 5, 8, 9], vec![2, 3, 6, 7, 10, 11]]);
    }
}
