//! Ranks that move parts of tensors, vote, and reduce gradients with various options.

use roundhouse_c10d::{
    CommHook, ProcessGroup, Reducer, ReducerOptions, Vote, agree, backward, host_syncs, layout,
    zero_grad,
};
use tch::nn::Module;
use tch::{Device, Kind, Tensor, nn};

use super::rank::{network, small_buckets};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).view([-1])).unwrap()
}

pub fn exchange(group: &ProcessGroup) {
    let (rank, size) = (i64::from(group.rank()), i64::from(group.world_size()));
    let bytes = Tensor::from_slice(&[rank, 10 + rank]).to_kind(Kind::Uint8);
    let mut all = Tensor::zeros([size, 2], (Kind::Uint8, Device::Cpu));
    group.all_gather(&mut all, &bytes).unwrap();
    let wanted: Vec<f64> = (0..size)
        .flat_map(|r| [r as f64, (10 + r) as f64])
        .collect();
    assert_eq!(floats(&all), wanted);
    assert_eq!(group.all_gather(&mut bytes.copy(), &all).is_err(), size > 1);

    // The part of rank r is the sum of row r over all ranks.
    let rows = Tensor::arange(size * 3, FLOAT).view([size, 3]) + rank as f64;
    let mut part = Tensor::zeros([1, 3], FLOAT);
    group.reduce_scatter(&mut part, &rows).unwrap();
    let ranks = (size * (size - 1) / 2) as f64;
    let wanted: Vec<f64> = (0..3)
        .map(|i| (size * (rank * 3 + i)) as f64 + ranks)
        .collect();
    assert_eq!(floats(&part), wanted);

    // Rank r sends d + 1 rows with its number to rank d.
    let go: Vec<i64> = (1..=size).collect();
    let come = vec![rank + 1; usize::try_from(size).unwrap()];
    let input = Tensor::full([go.iter().sum(), 2], rank, FLOAT);
    let mut output = Tensor::zeros([size * (rank + 1), 2], FLOAT);
    group.all_to_all(&mut output, &input, &come, &go).unwrap();
    let repeated = |r: i64| std::iter::repeat_n(r as f64, usize::try_from(2 * (rank + 1)).unwrap());
    assert_eq!(
        floats(&output),
        (0..size).flat_map(repeated).collect::<Vec<_>>()
    );
    assert!(
        group
            .all_to_all(&mut output, &input, &go[1..], &go)
            .is_err()
    );

    // Around the ring, from rank 0.
    let mut token = Tensor::from_slice(&[100.0 + rank as f64]);
    assert!(group.send(&token, group.rank()).is_err());
    let world = group.world_size();
    let (before, next) = (
        (group.rank() + world - 1) % world,
        (group.rank() + 1) % world,
    );
    if rank == 0 && size > 1 {
        group.send(&token, next).unwrap();
        group.receive(&mut token, before).unwrap();
    } else if size > 1 {
        group.receive(&mut token, before).unwrap();
        group.send(&token, next).unwrap();
    }
    assert_eq!(token.double_value(&[0]), 100.0);

    // All ranks at once around the ring, and along a chain whose ends only send or receive.
    if size > 1 {
        let own = Tensor::from_slice(&[rank]);
        let mut received = Tensor::from_slice(&[-1_i64]);
        let both = group.exchange(Some((&own, next)), Some((&mut received, before)));
        both.unwrap().wait().unwrap();
        assert_eq!(received.int64_value(&[0]), i64::from(before));
        let send = (rank + 1 < size).then_some((&own, next));
        let mut end = Tensor::from_slice(&[-1_i64]);
        let receive = (rank > 0).then_some((&mut end, before));
        group.exchange(send, receive).unwrap().wait().unwrap();
        assert_eq!(end.int64_value(&[0]), rank - 1);
        // Only two ranks exchange; the others take no part.
        if rank < 2 {
            let other = group.rank() ^ 1;
            let both = group.exchange(Some((&own, other)), Some((&mut received, other)));
            both.unwrap().wait().unwrap();
            assert_eq!(received.int64_value(&[0]), i64::from(other));
        }
        assert!(group.exchange(Some((&own, world)), None).is_err());
    }
    println!("exchange ok");
}

pub fn agreement(group: &ProcessGroup) {
    let agree = |values: &Tensor, finite: Option<&Tensor>, turn| {
        let vote = Vote {
            values,
            finite,
            equal: None,
            aside: None,
        };
        agree(vote, turn, Some(group))
    };
    let (rank, size) = (f64::from(group.rank()), f64::from(group.world_size()));
    let values = Tensor::from_slice(&[rank, 1e15, -0.1]);
    let syncs = host_syncs();
    let agreement = agree(&values, None, 3).unwrap();
    assert_eq!(host_syncs(), syncs);
    let agreed = agreement.wait().unwrap();
    assert!(agreed.is_good);
    assert_eq!(agreed.sums[..2], [size * (size - 1.0) / 2.0, size * 1e15]);
    // Losses that cancel.
    let sign = if group.rank().is_multiple_of(2) {
        1e9 / 3.0
    } else {
        -1e9 / 3.0
    };
    let cancelling = Tensor::from_slice(&[sign * (1.0 + rank * 1e-9)]);
    assert!(agree(&cancelling, None, 4).unwrap().wait().unwrap().is_good);
    // The trouble of one rank affects all ranks.
    let norm = Tensor::from(if group.rank() == 0 { f32::NAN } else { 1.0 });
    let agreement = agree(&values, Some(&norm), 5).unwrap();
    assert_eq!(agreement.found_inf().double_value(&[0]), 1.0);
    let agreed = agreement.wait().unwrap();
    assert!(agreed.is_right && !agreed.is_good);
    // Ranks in different turns do not agree.
    if size > 1.0 {
        let turn = u64::from(group.rank());
        let agreement = agree(&values, None, turn).unwrap();
        assert!(!agreement.wait().unwrap().is_right);
    }
    println!("agreement ok");
}

/// Exchanges until a peer is lost.
pub fn exchange_until_lost(group: &ProcessGroup) {
    let size = i64::from(group.world_size());
    for step in 0.. {
        let part = Tensor::ones([1], FLOAT);
        let mut all = Tensor::zeros([size], FLOAT);
        let result = match step % 3 {
            0 => group.all_gather(&mut all, &part),
            1 => group.reduce_scatter(&mut part.copy(), &all),
            _ => {
                let once = vec![1; usize::try_from(size).unwrap()];
                group.all_to_all(&mut all.copy(), &all, &once, &once)
            }
        };
        if let Err(error) = result {
            assert!(error.is_peer_lost(), "{error:?}");
            println!("peer lost at step {step}: {error}");
            return;
        }
        println!("step {step}");
    }
}

struct Run {
    gradients: Vec<Vec<f64>>,
    buckets: Vec<Vec<usize>>,
}

/// The gradients of the third pass, and the final layout.
fn passes(group: &ProcessGroup, options: &ReducerOptions) -> Run {
    tch::manual_seed(3);
    let vars = nn::VarStore::new(Device::Cpu);
    let model = network(&vars.root());
    let mut parameters = vars.trainable_variables();
    let images = Tensor::randn([8, 64], FLOAT) + f64::from(group.rank());
    let labels = Tensor::randint(10, [8], (Kind::Int64, Device::Cpu));
    let mut reducer = Reducer::new(&parameters, group, options).unwrap();
    assert_eq!(reducer.has_final_buckets(), options.buckets.is_some());
    for _ in 0..3 {
        zero_grad(&mut parameters).unwrap();
        reducer.prepare_for_forward().unwrap();
        let loss = model.forward(&images).cross_entropy_for_logits(&labels);
        reducer
            .prepare_for_backward_from(&[loss.shallow_clone()])
            .unwrap();
        backward(&loss).unwrap();
    }
    assert!(reducer.has_final_buckets());
    assert!(reducer.waited_before().unwrap().is_some());
    // Only two of the passes have a later pass.
    let _ = reducer.waited_before().unwrap();
    assert_eq!(reducer.waited_before().unwrap(), None);
    assert!(reducer.waited().unwrap().is_some());
    reducer.end_pass().unwrap();
    assert!(reducer.waited_before().unwrap().is_some());
    assert_eq!(reducer.waited_before().unwrap(), None);
    Run {
        gradients: parameters
            .iter()
            .map(|tensor| floats(&tensor.grad()))
            .collect(),
        buckets: reducer.buckets().unwrap(),
    }
}

pub fn reducers(group: &ProcessGroup) {
    let plain = passes(group, &small_buckets());
    assert_eq!(layout_alone(&small_buckets()), plain.buckets);
    let mut indices = plain.buckets.concat();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2, 3]);
    let wanted = plain.gradients.concat();
    // If the ranks' gradients cancel, the error is relative to the gradients.
    let greatest = wanted
        .iter()
        .fold(0.0, |most: f64, value| most.max(value.abs()));
    let error = |run: &Run| {
        let found = run.gradients.concat();
        let pairs = found.iter().zip(&wanted);
        pairs.fold(0.0, |most: f64, (found, wanted)| {
            most.max((found - wanted).abs())
        }) / greatest
    };
    let same = |options: ReducerOptions, tolerance: f64| {
        let run = passes(group, &options);
        let error = error(&run);
        assert!(error <= tolerance, "{options:?}: {error:e}");
        (run, error)
    };
    let given = ReducerOptions {
        buckets: Some(plain.buckets.clone()),
        ..small_buckets()
    };
    let (again, _) = same(given, 0.0);
    assert_eq!(again.buckets, plain.buckets);
    for (hook, tolerance) in [(CommHook::Bf16, 2e-2), (CommHook::Fp16, 2e-3)] {
        let (_, error) = same(
            ReducerOptions {
                hook,
                ..small_buckets()
            },
            tolerance,
        );
        assert!(error > tolerance / 1e3, "{hook:?} rounds nothing");
    }
    same(
        ReducerOptions {
            static_graph: true,
            ..small_buckets()
        },
        1e-6,
    );
    println!("reducers ok");
}

/// The layout that a rank finds alone, from one sample and other weights.
fn layout_alone(options: &ReducerOptions) -> Vec<Vec<usize>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let model = network(&vars.root());
    let mut parameters = vars.trainable_variables();
    let labels = Tensor::zeros([1], (Kind::Int64, Device::Cpu));
    let pass = || model.forward(&Tensor::ones([1, 64], FLOAT));
    let find = || {
        let loss = pass().cross_entropy_for_logits(&labels);
        layout(&parameters, &loss, options).unwrap()
    };
    let found = find();
    // No hook remains that would record the order of a later pass.
    assert_eq!(find(), found);
    zero_grad(&mut parameters).unwrap();
    let constant = Tensor::ones([], FLOAT);
    assert!(layout(&parameters, &constant, options).is_err());
    let unused = layout(&parameters, &pass().sum(Kind::Float), options).unwrap();
    assert_eq!(unused.concat().len(), parameters.len());
    found
}

/// An invalid layout is an error on each rank, and the group can still be used for another Reducer.
pub fn layouts(group: &ProcessGroup) {
    let vars = nn::VarStore::new(Device::Cpu);
    let _ = network(&vars.root());
    let parameters = vars.trainable_variables();
    let attempt = |buckets: &[&[usize]]| {
        let buckets = Some(buckets.iter().map(|bucket| bucket.to_vec()).collect());
        Reducer::new(
            &parameters,
            group,
            &ReducerOptions {
                buckets,
                ..small_buckets()
            },
        )
    };
    for wrong in [
        &[&[0_usize, 1][..], &[2]][..],
        &[&[0, 1, 2, 3, 3]],
        &[&[0, 1, 2, 4]],
    ] {
        assert!(attempt(wrong).unwrap_err().message.contains("bucket"));
    }
    let (one, other) = ([&[0_usize, 1][..], &[2, 3]], [&[1_usize, 0][..], &[2, 3]]);
    let error = attempt(if group.rank() == 0 { &one } else { &other }).unwrap_err();
    assert!(error.message.contains("different layouts"), "{error}");
    attempt(&one).unwrap();
    println!("layouts ok");
}

/// On one rank the loss does not depend on the second layer. On no rank does it depend on the last
/// layer.
pub fn unused(group: &ProcessGroup) {
    tch::manual_seed(3);
    let ones = || Tensor::ones([2], FLOAT).set_requires_grad(true);
    let parameters = [ones(), ones(), ones()];
    let options = ReducerOptions {
        find_unused_parameters: true,
        ..small_buckets()
    };
    let mut reducer = Reducer::new(&parameters, group, &options).unwrap();
    reducer.prepare_for_forward().unwrap();
    let mut loss = parameters[0].sum(Kind::Float);
    if group.rank() == 0 {
        loss += parameters[1].sum(Kind::Float);
    }
    reducer
        .prepare_for_backward_from(&[loss.shallow_clone()])
        .unwrap();
    backward(&loss).unwrap();
    assert_eq!(floats(&parameters[0].grad()), [1.0, 1.0]);
    let share = 1.0 / f64::from(group.world_size());
    assert_eq!(floats(&parameters[1].grad()), [share, share]);
    assert!(!parameters[2].grad().defined() || floats(&parameters[2].grad()) == [0.0, 0.0]);
    println!("unused ok");
}
