//! Batch normalization over all ranks computes the same as one process, for any shares of a batch.
//! The ranks are threads of this process, connected by Gloo.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use roundhouse_c10d::{Backend, GroupOptions, ProcessGroup, Store, backward};
use roundhouse_contract::trainer::model::BatchNorm as OverConfig;
use roundhouse_trainer::group::C10dGroup;
use roundhouse_trainer::models::{BatchNorm, Groups, Pass};
use roundhouse_trainer::{Mode, Parameters, Ranks, Task};
use tch::{Device, Kind, Tensor};

use crate::formula;
use crate::ghost::{TOLERANCE, difference, gradients, resnet};

const TRAIN: Mode = Mode::Train {
    seed: 1,
    step: 1,
    slice: 0,
};
const SHAPE: [i64; 4] = [6, 3, 4, 5];
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `compute` on each rank with its share of a batch that is cut at `cuts`.
fn on_ranks<T: Send>(cuts: &[i64], compute: impl Fn(Ranks, Range<i64>) -> T + Sync) -> Vec<T> {
    let store = Store::host(0, TIMEOUT).unwrap();
    let (port, size) = (store.port(), u32::try_from(cuts.len() - 1).unwrap());
    let rank_of = |rank| {
        let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
        let options = GroupOptions {
            backend: Backend::Gloo,
            timeout: TIMEOUT,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            own_store_port: None,
            name: "ranks".to_owned(),
        };
        let group = ProcessGroup::new(&store, rank, size, &options).unwrap();
        Ranks::of(Arc::new(C10dGroup::new(group, Device::Cpu)))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .zip(cuts.windows(2))
            .map(|(rank, pair)| {
                let (places, compute) = (pair[0]..pair[1], &compute);
                scope.spawn(move || {
                    // This sets the number for this thread only; all threads share the machine.
                    tch::set_num_threads(1);
                    compute(rank_of(rank), places)
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// The result of a normalization: outputs and gradients of the inputs by sample, and gradients of
/// weight, bias, mean and variance. The gradients of the statistics are the running values for a
/// momentum of 1.
struct Normalized {
    by_sample: [Tensor; 2],
    by_channel: Vec<Tensor>,
}

fn inputs() -> Tensor {
    formula::values("inputs", &SHAPE, 2.0, 5.0)
}

fn normalize(ranks: Option<Ranks>, places: Range<i64>) -> Normalized {
    let mut parameters = Parameters::default();
    let norm = BatchNorm::new(&mut parameters, "bn", SHAPE[1], 1.5, Groups::Batch).unwrap();
    let of_share = |all: &Tensor| all.narrow(0, places.start, places.end - places.start);
    let x_bchw = of_share(&inputs()).set_requires_grad(true);
    let weights_bchw = of_share(&formula::values("weights", &SHAPE, 1.0, 0.3));
    let mut pass = Pass::new(TRAIN).among(ranks);
    let y_bchw = norm.apply(&parameters, &x_bchw, &mut pass).unwrap();
    let term = pass.statistics_term(&parameters).unwrap().unwrap();
    let loss = (&y_bchw * weights_bchw).sum(Kind::Float) + term / SHAPE[0] as f64;
    backward(&loss).unwrap();
    Normalized {
        by_sample: [y_bchw.detach(), x_bchw.grad()],
        by_channel: parameters.tensors().iter().map(Tensor::grad).collect(),
    }
}

#[test]
fn synced_norm_equals_libtorch_for_any_shares() {
    let whole = normalize(None, 0..SHAPE[0]);
    let zeros = [0, 1].map(|_| Tensor::zeros([SHAPE[1]], tch::kind::FLOAT_CPU));
    let none = None::<&Tensor>;
    let [mean, var] = zeros.each_ref().map(Some);
    let _ = inputs().batch_norm(none, none, mean, var, true, 1.0, 1e-5, false);
    assert!(difference(&whole.by_channel[2..], &zeros) < 1e-6);
    for cuts in [&[0, 6][..], &[0, 2, 6], &[0, 5, 5, 6], &[0, 0, 6]] {
        let parts = on_ranks(cuts, |ranks, places| normalize(Some(ranks), places));
        for (at, whole) in whole.by_sample.iter().enumerate() {
            let joined: Vec<&Tensor> = parts.iter().map(|part| &part.by_sample[at]).collect();
            let found = difference(&[Tensor::cat(&joined, 0)], &[whole.shallow_clone()]);
            assert!(found < 1e-5, "{cuts:?}: {found}");
        }
        for (at, whole) in whole.by_channel.iter().enumerate() {
            let sum: Tensor = parts.iter().map(|part| &part.by_channel[at]).sum();
            let found = difference(&[sum], &[whole.shallow_clone()]);
            assert!(found < 1e-5, "{cuts:?}, {at}: {found}");
        }
    }
}

#[test]
fn synced_resnet_equals_one_process_with_an_empty_rank() {
    let synced = || resnet(|config| config.batch_norm = Some(OverConfig::Sync));
    let whole = gradients(&synced(), &[0, 8]);
    let parts = on_ranks(&[0, 5, 5, 8], |ranks, places| {
        let mut model = synced();
        model.train_among(Some(ranks));
        gradients(&model, &[places.start, places.end])
    });
    let sums: Vec<Tensor> = (0..whole.len())
        .map(|at| parts.iter().map(|part| &part[at]).sum())
        .collect();
    let found = difference(&sums, &whole);
    assert!(found < TOLERANCE, "{found}");
}

#[test]
fn synced_norm_computes_16_bit_inputs_in_32_bits() {
    let outputs = on_ranks(&[0, 1, 1], |ranks, places| {
        let mut parameters = Parameters::default();
        let norm = BatchNorm::new(&mut parameters, "bn", 2, 1.0, Groups::Batch).unwrap();
        let mut pass = Pass::new(TRAIN).among(Some(ranks));
        let x_bchw = Tensor::full(
            [places.end - places.start, 2, 1, 1],
            3.0,
            (Kind::BFloat16, Device::Cpu),
        );
        let y_bchw = norm.apply(&parameters, &x_bchw, &mut pass).unwrap();
        let term = pass.statistics_term(&parameters).unwrap().unwrap();
        backward(&(term + y_bchw.sum(Kind::Float))).unwrap();
        assert_eq!(y_bchw.kind(), Kind::BFloat16);
        [2, 3].map(|place| Vec::<f64>::try_from(parameters.at(place).grad()).unwrap())
    });
    assert_eq!(outputs[0], [vec![3.0, 3.0], vec![0.0, 0.0]]);
    assert_eq!(outputs[1], [vec![0.0, 0.0], vec![0.0, 0.0]]);
}

#[test]
fn evaluation_does_not_sum_over_ranks() {
    let mut model = resnet(|config| config.batch_norm = Some(OverConfig::Sync));
    let images = formula::values("inputs", &[2, 3, 16, 16], 2.0, 0.0).to_kind(Kind::Double);
    let alone = model.scores(&images, Mode::Evaluate).unwrap();
    // The second rank never reaches a collective.
    let scores = on_ranks(&[0, 1, 2], |ranks, places| {
        (places.start == 0).then_some(ranks)
    });
    let ranks = scores.into_iter().flatten().next();
    assert!(ranks.is_some());
    model.train_among(ranks);
    let among = model.scores(&images, Mode::Evaluate).unwrap();
    assert!(difference(&[among], &[alone]) < TOLERANCE);
}
