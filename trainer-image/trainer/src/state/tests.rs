use roundhouse_elastic::shard::shard;
use roundhouse_member::state_broadcast::sum_of_words;

use super::*;

/// Tensors of several types and memory formats, with 12 + 1 + 16 + 4 + 96 bytes.
fn tensors() -> Vec<(String, Tensor)> {
    let images = Tensor::arange(24, (Kind::Float, Device::Cpu)).reshape([1, 2, 3, 4]);
    // The layout of a model in the memory format channels_last.
    let images = images
        .permute([0, 2, 3, 1])
        .contiguous()
        .permute([0, 3, 1, 2]);
    assert!(!images.is_contiguous());
    [
        (
            "a",
            Tensor::from_slice(&[1.5_f32, 2.5, 3.5]).reshape([3, 1]),
        ),
        ("b", Tensor::from_slice(&[7_u8])),
        ("c", Tensor::from_slice(&[0.25_f64, -1.0])),
        ("d", Tensor::from(9.5_f32)),
        ("e", images),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into()
}

fn state(of: &[(String, Tensor)]) -> Tensors {
    let named: Vec<_> = of
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    Tensors::named(&named).unwrap()
}

fn out(state: &Tensors, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    state.copy_out(range, &mut bytes).unwrap();
    bytes
}

/// On a CPU the copies run the same code as with pinned memory, but in ordinary memory.
#[test]
fn snapshot_keeps_the_bytes_of_its_step() {
    let mut trained = tensors();
    let state = state(&trained);
    let mut former: Option<Box<dyn Snapshot>> = None;
    // Consecutive snapshots of one size reuse their memory.
    for range in [0..129, 0..129, 5..60, 60..115, 40..40] {
        let expected = out(&state, range.clone());
        let snapped = Snapped::begin(&state, &range, former, Device::Cpu);
        let mut snapped: Box<dyn Snapshot> = Box::new(snapped.unwrap());
        let mut at_once = state.snapshot(range.clone(), None).unwrap();
        for (_, tensor) in &mut trained {
            let _ = tensor.fill_(0.0);
        }
        assert_eq!(snapped.bytes().unwrap(), expected, "{range:?}");
        assert_eq!(at_once.bytes().unwrap(), expected, "{range:?}");
        former = Some(snapped);
    }
    assert!(Snapped::begin(&state, &(100..130), None, Device::Cpu).is_err());
    assert!(state.snapshot(100..130, None).is_err());
}

#[test]
fn parts_of_any_number_of_ranks_restore_the_state() {
    let saved = tensors();
    let from = state(&saved);
    assert_eq!(from.table().unwrap().sizes(), [12, 1, 16, 4, 96]);
    for world_size in [1, 2, 3, 7, 40] {
        let loaded: Vec<_> = tensors()
            .into_iter()
            .map(|(name, mut tensor)| (name, tensor.zero_()))
            .collect();
        let mut to = state(&loaded);
        for rank in 0..world_size {
            let part = shard(&(0..129), rank, world_size);
            to.copy_in(part.start, &out(&from, part)).unwrap();
        }
        for ((name, saved), (_, loaded)) in saved.iter().zip(&loaded) {
            assert!(saved.equal(loaded), "{name} of {world_size} ranks");
            assert_eq!(saved.stride(), loaded.stride(), "{name}");
        }
    }
}

#[test]
fn bytes_do_not_depend_on_the_memory_format() {
    let original = tensors();
    let contiguous: Vec<_> = tensors()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.contiguous()))
        .collect();
    assert_eq!(
        out(&state(&original), 0..129),
        out(&state(&contiguous), 0..129)
    );
}

#[test]
fn weight_that_requires_a_gradient_is_overwritten() {
    let weight = Tensor::zeros([3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let named = [("w".to_owned(), weight.shallow_clone())];
    let bytes: Vec<u8> = [1.0_f32, 2.0, 3.0]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    state(&named).copy_in(0, &bytes).unwrap();
    assert_eq!(
        Vec::<f32>::try_from(weight.detach()).unwrap(),
        [1.0, 2.0, 3.0]
    );
    assert!(weight.requires_grad());
}

/// The ranks compare these digests before each checkpoint. `--nocapture` prints the time of the
/// digests and of the copy that a save makes.
#[test]
fn digest_does_not_depend_on_the_alignment() {
    let mut named = tensors();
    let flat = Tensor::arange(9, (Kind::Float, Device::Cpu));
    // The first byte of this tensor is not at a multiple of a word.
    named.push(("f".to_owned(), flat.narrow(0, 3, 5)));
    named.push((
        "g".to_owned(),
        Tensor::zeros([0], (Kind::Float, Device::Cpu)),
    ));
    let state = state(&named);
    let digests = state.digests().unwrap();
    let table = state.table().unwrap();
    let expected = table.views().iter().map(|view| {
        let bytes = out(&state, view.offset..view.offset + view.bytes);
        let (words, rest) = bytes.split_at(bytes.len() / 8 * 8);
        let rest = rest.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        replicas::digest(sum_of_words(words).wrapping_add(rest))
    });
    assert_eq!(digests, expected.collect::<Vec<_>>());

    let large = Tensor::ones([64 << 20], (Kind::Float, Device::Cpu));
    let state = self::state(&[("large".to_owned(), large)]);
    let num_bytes = state.table().unwrap().num_bytes();
    let fewest = |run: &dyn Fn()| {
        let times = (0..3).map(|_| {
            let begun = std::time::Instant::now();
            run();
            begun.elapsed()
        });
        times.min().unwrap()
    };
    let digest = fewest(&|| assert_eq!(state.digests().unwrap().len(), 1));
    let copy = fewest(&|| assert!(state.snapshot(0..num_bytes, None).is_ok()));
    let gigabytes = num_bytes as f64 / 1e9;
    println!(
        "once per checkpoint: {gigabytes:.2} GB compared in {digest:.1?} ({:.1} GB/s), copied in {copy:.1?}",
        gigabytes / digest.as_secs_f64()
    );
}

#[test]
fn bytes_beyond_the_state_are_refused() {
    let original = tensors();
    let mut state = state(&original);
    assert!(state.copy_in(128, &[0; 2]).is_err());
    assert!(state.copy_out(120..140, &mut [0; 20]).is_err());
}

#[test]
fn digest_of_a_chunk_equals_that_of_host_memory() {
    let original = tensors();
    let state = state(&original);
    for range in [0_u64..129, 3..40, 0..8, 5..5] {
        let length = (range.end - range.start).cast_signed();
        let mut flat = Flat::new(length, Device::Cpu).unwrap();
        assert!(!flat.read(range.start).unwrap().1, "zeros are not sealed");
        state.flatten(&range, &flat.bytes).unwrap();
        flat.seal(range.start).unwrap();
        let sum = sum_of_words(&out(&state, range.clone()));
        assert_eq!(flat.read(range.start).unwrap(), (sum, true));
        assert!(!flat.read(range.start + 1).unwrap().1, "of another place");
    }
}
