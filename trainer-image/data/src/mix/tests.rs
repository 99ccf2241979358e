use std::collections::BTreeMap;

use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use super::*;

/// A data set whose samples are one byte. The label is the number of the sample and of the pass.
#[derive(Debug)]
struct Numbers {
    num_samples: u64,
    item: Item,
    samples_per_block: u64,
}

impl Dataset for Numbers {
    fn num_samples(&self) -> u64 {
        self.num_samples
    }

    fn item(&self) -> &Item {
        &self.item
    }

    fn samples_per_block(&self) -> u64 {
        self.samples_per_block
    }

    fn num_classes(&self) -> Option<u32> {
        None
    }

    fn read(
        &self,
        sample: u64,
        epoch: u64,
        _: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError> {
        into.fill(0);
        Ok((epoch * 1_000_000 + sample).cast_signed())
    }
}

fn part(name: &str, num_samples: u64, weight: f64) -> Part {
    in_blocks(1, name, num_samples, weight)
}

/// Returns a part that is best read in blocks of `samples_per_block` samples.
fn in_blocks(samples_per_block: u64, name: &str, num_samples: u64, weight: f64) -> Part {
    let item = Item::Pixels {
        height: 1,
        width: 1,
        num_channels: 1,
    };
    Part {
        name: name.to_owned(),
        dataset: Arc::new(Numbers {
            num_samples,
            item,
            samples_per_block,
        }),
        weight,
    }
}

/// Number of tokens in billions, weight in percent, and epochs for 300 billion tokens: Brown et
/// al., 2020, "Language Models are Few-Shot Learners", table 2.2.
const GPT_3: [(f64, f64, f64); 5] = [
    (410.0, 60.0, 0.44),
    (19.0, 22.0, 2.9),
    (12.0, 8.0, 1.9),
    (55.0, 8.0, 0.43),
    (3.0, 3.0, 3.4),
];

#[test]
fn gpt_3_weights_give_the_epochs_of_its_table() {
    let total = 300_000_000_000;
    let counts = divide(total, &GPT_3.map(|(_, weight, _)| weight));
    assert_eq!(counts.iter().sum::<u64>(), total);
    for ((billions, weight, epochs), count) in GPT_3.into_iter().zip(&counts) {
        // The printed weights add up to 101. Each share is exact to one sample.
        let exact = 300e9 * weight / 101.0;
        assert!((*count as f64 - exact).abs() < 1.0);
        let found = *count as f64 / (billions * 1e9);
        // The columns of the table agree within the rounding of the weights (half a point), except
        // for WebText2, whose 22 % of 300 billion tokens are 3.5 passes over 19 billion, not 2.9.
        let rounding = 0.5 / weight + 1.0 / 101.0 + 0.05;
        let is_web_text = epochs > 2.0 && weight > 20.0;
        assert_eq!(
            (found / epochs - 1.0).abs() > rounding,
            is_web_text,
            "{found} {epochs}"
        );
    }
}

#[test]
fn gpt_3_epochs_give_the_weights_of_its_table() {
    let total = 300_000_000_000;
    let counts = divide(total, &GPT_3.map(|(billions, _, epochs)| billions * epochs));
    for ((_, weight, _), count) in GPT_3.into_iter().zip(counts) {
        let percent = count as f64 / total as f64 * 100.0;
        let distance = (percent - weight).abs();
        assert_eq!(
            distance > 2.0,
            weight > 20.0 && weight < 30.0,
            "{percent} {weight}"
        );
    }
}

/// Returns the part of a sample of a mix, the number within the part, and the pass over the part.
fn read(mix: &Mix, sample: u64, epoch: u64) -> (usize, u64, u64) {
    let (mut scratch, mut byte) = (Scratch::default(), [0]);
    let label = mix.read(sample, epoch, &mut scratch, &mut byte).unwrap();
    let label = u64::try_from(label).unwrap();
    let part = mix.part_of(sample).unwrap();
    (part, label % 1_000_000, label / 1_000_000)
}

/// Returns the samples of each pass over each part, in five epochs.
fn passes(mix: &Mix) -> BTreeMap<(usize, u64), Vec<u64>> {
    let mut passes: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for epoch in 0..5 {
        for sample in 0..mix.num_samples() {
            let (part, sample, pass) = read(mix, sample, epoch);
            passes.entry((part, pass)).or_default().push(sample);
        }
    }
    passes
}

#[test]
fn each_data_set_has_its_exact_share_in_whole_passes() {
    for samples_per_block in [1, 4] {
        let part =
            |name, num_samples, weight| in_blocks(samples_per_block, name, num_samples, weight);
        let parts = vec![part("a", 90, 0.2), part("b", 10, 0.7), part("c", 3, 0.1)];
        let mix = Mix::new(parts, 5, None).unwrap();
        let shares = mix.shares();
        let counts: Vec<u64> = shares.iter().map(|share| share.num_samples).collect();
        assert_eq!(counts, [21, 72, 10]);
        assert!((shares[1].epochs - 7.2).abs() < 1e-12);
        let passes = passes(&mix);
        // 360 samples of "b" are 36 passes. Each has every sample once and its own order.
        let of_b: Vec<_> = passes
            .iter()
            .filter(|((part, _), _)| *part == 1)
            .map(|(_, samples)| samples)
            .collect();
        assert_eq!(of_b.len(), 36);
        assert_ne!(of_b[0], of_b[1]);
        for samples in of_b {
            let mut samples = samples.clone();
            samples.sort_unstable();
            assert_eq!(samples, (0..10).collect::<Vec<_>>());
        }
        // 105 samples of "a" are one pass and the beginning of another.
        assert_eq!((passes[&(0, 0)].len(), passes[&(0, 1)].len()), (90, 15));
    }
}

#[test]
fn data_set_without_blocks_keeps_a_one_level_order() {
    let parts = vec![part("a", 50, 1.0), in_blocks(8, "b", 50, 1.0)];
    let passes = passes(&Mix::new(parts, 5, None).unwrap());
    for pass in 0..5 {
        let order = Permutation::new(50, 5, pass);
        let expected: Vec<u64> = (0..50).filter_map(|place| order.at(place)).collect();
        assert_eq!(passes[&(0, pass)], expected);
    }
}

#[test]
fn configured_blocks_have_priority_over_those_of_the_data() {
    let blocks = Blocks {
        num_samples: 3,
        num_mixed: 4,
    };
    let parts = vec![in_blocks(8, "a", 50, 1.0)];
    let passes = passes(&Mix::new(parts, 5, Some(blocks)).unwrap());
    let order = Permutation::in_blocks(50, 5, 2, blocks);
    let expected: Vec<u64> = (0..50).filter_map(|place| order.at(place)).collect();
    assert_eq!(passes[&(0, 2)], expected);
}

/// Counts how often a block is read that is not among the last `num_kept` blocks of its part.
fn num_loads(mix: &Mix, order: &Permutation, samples_per_block: u64, num_kept: usize) -> usize {
    let mut kept = vec![Vec::new(); mix.part_names().len()];
    let mut num_loads = 0;
    for sample in (0..mix.num_samples()).filter_map(|place| order.at(place)) {
        let (part, sample, _) = read(mix, sample, order.epoch());
        let (block, kept) = (sample / samples_per_block, &mut kept[part]);
        if let Some(at) = kept.iter().position(|other| *other == block) {
            kept.remove(at);
        } else {
            num_loads += 1;
        }
        kept.push(block);
        if kept.len() > num_kept {
            kept.remove(0);
        }
    }
    num_loads
}

#[test]
fn mix_reads_each_block_only_a_few_times() {
    const BLOCK: u64 = 50;
    let parts = vec![
        in_blocks(BLOCK, "a", 5_020, 3.0),
        in_blocks(BLOCK, "b", 4_990, 1.0),
    ];
    let mix = Mix::new(parts, 5, None).unwrap();
    assert_eq!(mix.samples_per_block(), BLOCK);
    // The opener orders a data set in blocks like this.
    let windows = Blocks {
        num_samples: BLOCK,
        num_mixed: 16,
    };
    for epoch in 0..3 {
        let order = Permutation::in_blocks(mix.num_samples(), 5, epoch, windows);
        // A window needs at most 2 blocks for each of its 16, and 3 where a pass ends.
        let num_loads = num_loads(&mix, &order, BLOCK, 48);
        let num_blocks = usize::try_from(mix.num_samples() / BLOCK).unwrap();
        assert!(num_loads <= 3 * num_blocks, "{num_loads} of {num_blocks}");
    }
}

#[test]
fn data_sets_of_different_shapes_are_refused() {
    let other = Part {
        name: "b".to_owned(),
        dataset: Arc::new(Numbers {
            num_samples: 3,
            item: Item::Tokens { context: 8 },
            samples_per_block: 1,
        }),
        weight: 1.0,
    };
    let text = Mix::new(vec![part("a", 3, 1.0), other], 0, None)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("samples of b have another shape than those of a"),
        "{text}"
    );
    assert!(Mix::new(Vec::new(), 0, None).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn shares_add_up_and_are_rounded_by_less_than_one(
        total in 0_u64..1_000_000, weights in proptest::collection::vec(1e-3_f64..1e3, 1..20)
    ) {
        let parts = divide(total, &weights);
        prop_assert_eq!(parts.iter().sum::<u64>(), total);
        let sum: f64 = weights.iter().sum();
        for (part, weight) in parts.iter().zip(&weights) {
            let exact = total as f64 * weight / sum;
            prop_assert!((*part as f64 - exact).abs() < 1.0 + 1e-6);
        }
    }
}
