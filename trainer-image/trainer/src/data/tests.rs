use std::path::Path;

use roundhouse_c10d::format;
use roundhouse_contract::trainer::data::mix::Part as MixPart;
use roundhouse_contract::trainer::data::{Data, DataFormat, TokenOptions, TokenType};
use roundhouse_data::open::{Pixels, open};
use roundhouse_data::{DataError, Scratch};

use super::*;

fn source(data: &Data, root: &Path, normalize: Option<(&[f64], &[f64])>) -> HostSource {
    let splits = open(data, root, Pixels::Bytes, 0, None).unwrap();
    HostSource::new(splits.train, Options::default(), normalize, Device::Cpu).unwrap()
}

fn digits(normalize: Option<(&[f64], &[f64])>) -> HostSource {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/digits");
    source(&Data::new(DataFormat::Idx), &root, normalize)
}

#[test]
fn images_become_fractions_of_one_with_their_labels() {
    let mut source = digits(None);
    let order = Permutation::new(source.num_samples(), 1, 0);
    let batch = source.fetch(0..5, &order).unwrap();
    assert_eq!(batch.inputs.size(), [5, 1, 8, 8]);
    assert_eq!((batch.targets.size(), batch.num_samples), (vec![5], 5));
    let (low, high) = (
        batch.inputs.min().double_value(&[]),
        batch.inputs.max().double_value(&[]),
    );
    assert!(low >= 0.0 && high > 0.5 && high <= 1.0, "{low} {high}");
    assert_eq!(
        source.fetch(5..5, &order).unwrap().inputs.size(),
        [0, 1, 8, 8]
    );
}

#[test]
fn images_are_normalized_on_the_device() {
    let order = Permutation::new(digits(None).num_samples(), 1, 0);
    let plain = digits(None).fetch(0..3, &order).unwrap().inputs;
    let normalized = digits(Some((&[0.25], &[0.5])))
        .fetch(0..3, &order)
        .unwrap()
        .inputs;
    let distance = (normalized * 0.5 + 0.25 - plain)
        .abs()
        .max()
        .double_value(&[]);
    assert!(distance < 1e-6, "{distance}");
}

/// Images of two by three pixels with three channels. All bytes differ.
#[derive(Debug)]
struct Colours;

impl Dataset for Colours {
    fn num_samples(&self) -> u64 {
        6
    }

    fn item(&self) -> &Item {
        &Item::Pixels {
            height: 2,
            width: 3,
            num_channels: 3,
        }
    }

    fn num_classes(&self) -> Option<u32> {
        Some(1)
    }

    fn read(
        &self,
        sample: u64,
        _: u64,
        _: &mut Scratch,
        into: &mut [u8],
    ) -> Result<i64, DataError> {
        let first = u8::try_from(sample * 18).unwrap();
        for (byte, value) in into.iter_mut().zip(first..) {
            *byte = value;
        }
        Ok(0)
    }
}

#[test]
fn channels_last_images_are_not_copied() {
    let source = || {
        let normalize: (&[f64], &[f64]) = (&[0.1, 0.2, 0.3], &[0.5, 0.6, 0.7]);
        let options = Options::default();
        HostSource::new(Arc::new(Colours), options, Some(normalize), Device::Cpu).unwrap()
    };
    let order = Permutation::new(6, 1, 0);
    let plain = source().fetch(0..4, &order).unwrap().inputs;
    assert!(plain.is_contiguous());
    let mut last = source();
    last.lay_channels_last();
    let last = last.fetch(0..4, &order).unwrap().inputs;
    assert!(format::is_channels_last(&last).unwrap());
    assert_eq!(last, plain);
}

#[test]
fn targets_of_tokens_are_the_next_tokens() {
    let root = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = (10..17_u16).flat_map(u16::to_le_bytes).collect();
    std::fs::write(root.path().join("train"), tokens).unwrap();
    let mut data = Data::new(DataFormat::Tokens);
    data.tokens = Some(TokenOptions {
        context: 3,
        dtype: TokenType::U16,
        tokenizer: None,
        end_of_text: None,
        column: None,
        vocabulary: None,
    });
    let mut source = source(&data, root.path(), None);
    let order = Permutation::new(2, 0, 0);
    let batch = source.fetch(0..2, &order).unwrap();
    let first = i64::try_from(order.at(0).unwrap() * 3 + 10).unwrap();
    let row = |tensor: &Tensor| Vec::<i64>::try_from(tensor.get(0)).unwrap();
    assert_eq!(row(&batch.inputs), [first, first + 1, first + 2]);
    assert_eq!(row(&batch.targets), [first + 1, first + 2, first + 3]);
}

#[test]
fn samples_are_counted_per_data_set_of_a_mix() {
    let root = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = (0..400_u16).flat_map(u16::to_le_bytes).collect();
    let mut data = Data::new(DataFormat::Tokens);
    for (name, weight) in [("web", 0.75), ("books", 0.25)] {
        std::fs::write(root.path().join(name), &tokens).unwrap();
        data.mix.push(MixPart {
            train: name.to_owned(),
            weight,
        });
    }
    data.tokens = Some(TokenOptions {
        context: 4,
        dtype: TokenType::U16,
        tokenizer: None,
        end_of_text: None,
        column: None,
        vocabulary: None,
    });
    let mut source = source(&data, root.path(), None);
    assert_eq!(source.tokens_per_sample(), Some(4));
    let num_samples = source.num_samples();
    let order = Permutation::new(num_samples, 0, 0);
    source.fetch(0..num_samples, &order).unwrap();
    let of = |part: usize| source.num_by_part()[part].1;
    assert_eq!(source.num_by_part()[0].0, "web");
    assert_eq!(of(0) + of(1), num_samples);
    // Exact up to rounding: the data set with the larger remainder gets the remaining sample.
    assert!(of(0).abs_diff(of(1) * 3) <= 3, "{:?}", source.num_by_part());
    assert_eq!(source.num_skipped(), 0);
}
