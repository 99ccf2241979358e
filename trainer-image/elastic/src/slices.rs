//! Sums that are equal bit for bit for every number of ranks.
//!
//! Floating-point addition is not associative, so a sum depends on the order of its terms. Here the
//! order is fixed: a global batch is divided into V *slices*, and the results of the slices are
//! summed along one binary tree. A [`Node`] of level l and index i is the sum of the slices
//! `[i·2^l, (i+1)·2^l)`. Each rank owns consecutive whole slices and adds up the nodes that it owns
//! completely ([`Partial`]). The owner of a chunk of the numbers adds up the rest of the tree from
//! the nodes of all ranks ([`total`]). `EasyScale` (Li et al., SC'23) describes the idea for GPU
//! clusters.

use std::ops::Range;

use crate::shard::shard;

/// A node of the binary tree over the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Level 0 is a slice; a node of level l is the sum of up to 2^l slices.
    pub level: u32,
    /// Index of the node among the nodes of its level.
    pub index: u32,
}

impl Node {
    /// Returns the node of one slice.
    #[must_use]
    pub const fn slice(index: u32) -> Self {
        Self { level: 0, index }
    }

    const fn parent(self) -> Self {
        Self {
            level: self.level + 1,
            index: self.index / 2,
        }
    }

    /// Returns the slices of the node, of `num_slices`.
    fn slices(self, num_slices: u32) -> Range<u64> {
        let start = u64::from(self.index) << self.level;
        let end = (u64::from(self.index) + 1) << self.level;
        start.min(u64::from(num_slices))..end.min(u64::from(num_slices))
    }

    const fn is_right(self) -> bool {
        self.index % 2 == 1
    }
}

/// Returns the slices that `rank` of `world_size` owns. They are consecutive, and the numbers of
/// slices differ by at most one.
#[must_use]
pub fn owned(num_slices: u32, rank: u32, world_size: u32) -> Range<u32> {
    let part = shard(&(0..u64::from(num_slices)), rank, world_size);
    let index = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
    index(part.start)..index(part.end)
}

/// Returns the places of a slice in a global batch.
#[must_use]
pub fn places(whole: &Range<u64>, slice: u32, num_slices: u32) -> Range<u64> {
    shard(whole, slice, num_slices)
}

/// Returns the fewest nodes that cover a range of slices, in order: the sums that
/// its owner computes alone.
#[must_use]
pub fn nodes(slices: &Range<u32>, num_slices: u32) -> Vec<Node> {
    let mut partial = Partial::new(num_slices, slices.clone());
    for slice in slices.clone() {
        partial.add(slice, (), |(), ()| ());
    }
    partial.into_nodes().map(|(node, ())| node).collect()
}

/// Adds up the slices of one rank in the order of the tree, as they arrive.
#[derive(Debug)]
pub struct Partial<T> {
    num_slices: u32,
    range: Range<u64>,
    /// Nodes that wait for their right neighbours. No two of them have the same parent.
    waiting: Vec<(Node, T)>,
}

impl<T> Partial<T> {
    /// Creates an empty sum of a range of slices.
    #[must_use]
    pub fn new(num_slices: u32, range: Range<u32>) -> Self {
        Self {
            num_slices,
            range: u64::from(range.start)..u64::from(range.end),
            waiting: Vec::new(),
        }
    }

    /// Adds the next slice of the range. At most log2 V + 1 values are kept. The order of the calls
    /// `add(left, right)` depends on the tree alone.
    pub fn add(&mut self, slice: u32, value: T, mut add: impl FnMut(T, T) -> T) {
        let (mut node, mut value) = (Node::slice(slice), value);
        loop {
            let parent = node.parent();
            let covered = parent.slices(self.num_slices);
            let is_owned = covered.start >= self.range.start && covered.end <= self.range.end;
            if is_whole(node, self.num_slices) || !is_owned {
                break;
            }
            if node.is_right() {
                let Some((_, left)) = self.waiting.pop() else {
                    break;
                };
                value = add(left, value);
            } else if covered != node.slices(self.num_slices) {
                // The right neighbour has not arrived yet.
                break;
            }
            node = parent;
        }
        self.waiting.push((node, value));
    }

    /// Returns the nodes that this rank cannot add up further, in order.
    pub fn into_nodes(self) -> impl Iterator<Item = (Node, T)> {
        self.waiting.into_iter()
    }
}

/// Returns the sum of all slices from the nodes of all ranks, in the order of the slices; `None` if
/// a node is missing.
pub fn total<T>(
    num_slices: u32,
    nodes: impl IntoIterator<Item = (Node, T)>,
    mut add: impl FnMut(T, T) -> T,
) -> Option<T> {
    let mut waiting: Vec<(Node, T)> = Vec::new();
    for (mut node, mut value) in nodes {
        while !is_whole(node, num_slices) {
            let parent = node.parent();
            if node.is_right() {
                let (left, sum) = waiting.pop()?;
                if left.parent() != parent {
                    return None;
                }
                value = add(sum, value);
            } else if parent.slices(num_slices) != node.slices(num_slices) {
                break;
            }
            node = parent;
        }
        waiting.push((node, value));
    }
    let (node, sum) = waiting.pop()?;
    (waiting.is_empty() && is_whole(node, num_slices)).then_some(sum)
}

fn is_whole(node: Node, num_slices: u32) -> bool {
    node.slices(num_slices) == (0..u64::from(num_slices))
}

#[cfg(test)]
mod tests;
