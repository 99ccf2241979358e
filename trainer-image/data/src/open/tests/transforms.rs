use super::*;

#[test]
fn augmentation_depends_only_on_seed_epoch_and_sample() {
    let root = images();
    let data = configured(json!({"format": "webdataset", "path": "tar",
        "image": {"size": 16, "augment": ["resizedCrop", "flip", "randAugment"]}}));
    let read = |seed, epoch, threads| {
        let splits = open(&data, root.path(), Pixels::Normalized, seed, None).unwrap();
        let options = Options {
            num_threads: threads,
            num_ahead: 1,
            on_corrupt: OnCorrupt::Fail,
        };
        let mut prefetcher = Prefetcher::new(splits.train, options).unwrap();
        let request = Request {
            samples: vec![3, 1, 4, 1, 5],
            epoch,
        };
        prefetcher.fetch(&request).unwrap().floats()
    };
    let first = read(1, 0, 1);
    assert_eq!(first, read(1, 0, 5));
    let sample = 3 * 16 * 16;
    assert_eq!(first[sample..2 * sample], first[3 * sample..4 * sample]);
    assert_ne!(first, read(1, 1, 1));
    assert_ne!(first, read(2, 0, 1));
}

#[test]
fn normalized_floats_equal_the_normalized_bytes() {
    let root = images();
    let data = configured(json!({"format": "tfrecord", "path": "record",
        "image": {"size": 8, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.1]}}));
    let bytes = open(&data, root.path(), Pixels::Bytes, 0, None).unwrap();
    let floats = open(&data, root.path(), Pixels::Normalized, 0, None).unwrap();
    assert_eq!(
        bytes.normalize,
        Some((vec![0.5, 0.4, 0.3], vec![0.2, 0.3, 0.1]))
    );
    assert!(floats.normalize.is_none());
    let bytes = HostBatch::read(bytes.train.as_ref(), &[2], 0).unwrap();
    let floats = HostBatch::read(floats.train.as_ref(), &[2], 0)
        .unwrap()
        .floats();
    for (channel, (mean, std)) in [(0.5, 0.2), (0.4, 0.3), (0.3, 0.1)].into_iter().enumerate() {
        for pixel in 0..64 {
            let expected = (f32::from(bytes.values[pixel * 3 + channel]) / 255.0 - mean) / std;
            assert!((floats[channel * 64 + pixel] - expected).abs() < 1e-6);
        }
    }
}
