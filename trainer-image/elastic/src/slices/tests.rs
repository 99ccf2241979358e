use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

/// Computes the sum as the ranks of a process group do.
fn sum(values: &[f32], world_size: u32) -> Option<f32> {
    let num_slices = u32::try_from(values.len()).unwrap();
    let nodes = (0..world_size).flat_map(|rank| {
        let range = owned(num_slices, rank, world_size);
        let mut partial = Partial::new(num_slices, range.clone());
        for slice in range {
            partial.add(slice, values[slice as usize], |left, right| left + right);
        }
        partial.into_nodes()
    });
    total(num_slices, nodes, |left, right| left + right)
}

/// Computes the same tree by its definition: by recursion from the root.
fn defined(values: &[f32]) -> f32 {
    if let [value] = values {
        return *value;
    }
    let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
    defined(left) + defined(right)
}

proptest! {
    #[test]
    fn sum_is_equal_bit_for_bit_for_every_number_of_ranks(
        values in proptest::collection::vec(-1e6_f32..1e6, 1..70),
    ) {
        let expected = defined(&values).to_bits();
        for world_size in 1..=9 {
            prop_assert_eq!(sum(&values, world_size).map(f32::to_bits), Some(expected));
        }
    }

    #[test]
    fn a_rank_sends_few_nodes(num_slices in 1_u32..2_000, world_size in 1_u32..64, seed in any::<u32>()) {
        let rank = seed % world_size;
        let range = owned(num_slices, rank, world_size);
        let found = nodes(&range, num_slices);
        let num_owned = range.end - range.start;
        let most = 2 * num_owned.checked_ilog2().map_or(0, |log| log + 1);
        prop_assert!(found.len() <= most as usize, "{} nodes of {num_owned} slices", found.len());
        let covered: u64 = found.iter().map(|node| {
            let slices = node.slices(num_slices);
            slices.end - slices.start
        }).sum();
        prop_assert_eq!(covered, u64::from(num_owned));
    }
}

#[test]
fn power_of_two_ranks_send_one_node_each() {
    for rank in 0..4 {
        assert_eq!(
            nodes(&owned(32, rank, 4), 32),
            [Node {
                level: 3,
                index: rank
            }]
        );
    }
    assert_eq!(nodes(&(0..32), 32), [Node { level: 5, index: 0 }]);
    assert_eq!(nodes(&(4..4), 32), []);
}

#[test]
fn missing_node_gives_no_sum() {
    let all = |skip: u32| {
        (0..4)
            .filter(move |index| *index != skip)
            .map(|index| (Node::slice(index), 1))
    };
    for skip in 0..4 {
        assert_eq!(total(4, all(skip), |left, right| left + right), None);
    }
    assert_eq!(total(4, all(4), |left, right| left + right), Some(4));
}

#[test]
fn slices_cover_a_batch_of_any_size() {
    let cut: Vec<_> = (0..4).map(|slice| places(&(10..16), slice, 4)).collect();
    assert_eq!(cut, [10..11, 11..13, 13..14, 14..16]);
}
