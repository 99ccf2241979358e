//! Ranks that sum over all ranks within their passes.

use std::cell::RefCell;

use roundhouse_c10d::{ProcessGroup, Reducer, backward, take_sum_wait, zero_grad};
use tch::{Device, Kind, Tensor};

use super::rank::small_buckets;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
/// Double precision, because rounding in single precision would hide small defects.
const DOUBLE: (Kind, Device) = (Kind::Double, Device::Cpu);
const SAMPLES: i64 = 12;
const WIDTH: i64 = 24;

/// Compares a sum and its gradients with a manual result: rank r passes (r, 2r), and its loss
/// weights the sum by r + 1.
fn by_hand(group: &ProcessGroup) {
    let (rank, size) = (f64::from(group.rank()), f64::from(group.world_size()));
    let ranks = size * (size - 1.0) / 2.0;
    let own = (Tensor::from_slice(&[1.0_f32, 2.0]) * rank).set_requires_grad(true);
    let sum = group.sum(&own).unwrap();
    assert_eq!(
        Vec::<f64>::try_from(&sum).unwrap(),
        [ranks, 2.0 * ranks],
        "rank {rank}"
    );
    assert_eq!(own.double_value(&[1]), 2.0 * rank, "the input changed");
    backward(&(sum * (rank + 1.0)).sum(Kind::Float)).unwrap();
    let weight = ranks + size;
    assert_eq!(Vec::<f64>::try_from(own.grad()).unwrap(), [weight, weight]);
    // Without a gradient there is no graph. The memory layout does not change values.
    let rows = Tensor::arange(6, FLOAT).view([2, 3]).tr();
    let sum = group.sum(&rows).unwrap();
    assert!(!sum.requires_grad());
    assert_eq!(sum, rows * size);
}

/// The pair of sums around a layer whose parts are on several ranks: rank r multiplies `x` by
/// r + 1, and each rank's loss is twice the sum over the ranks.
fn around_parts(group: &ProcessGroup) {
    let (rank, size) = (f64::from(group.rank()), f64::from(group.world_size()));
    let factors = size * (size + 1.0) / 2.0;
    let x = Tensor::from_slice(&[1.0_f32, 2.0]).set_requires_grad(true);
    let same = group.sum_gradients(&x).unwrap();
    assert_eq!(Vec::<f64>::try_from(&same).unwrap(), [1.0, 2.0]);
    let sum = group.sum_values(&(same * (rank + 1.0))).unwrap();
    assert_eq!(
        Vec::<f64>::try_from(&sum).unwrap(),
        [factors, 2.0 * factors]
    );
    backward(&(sum * 2.0).sum(Kind::Float)).unwrap();
    let gradient = Vec::<f64>::try_from(x.grad()).unwrap();
    assert_eq!(gradient, [2.0 * factors, 2.0 * factors]);
    // Without a gradient there is no graph.
    for sum in [
        group.sum_gradients(&x.detach()),
        group.sum_values(&x.detach()),
    ] {
        assert!(!sum.unwrap().requires_grad());
    }
}

/// A network with two branches and sums of different sizes: each branch subtracts the mean over all
/// samples.
struct Branches {
    weights: Vec<Tensor>,
}

impl Branches {
    fn new() -> Self {
        tch::manual_seed(5);
        let weight =
            |width: i64| (Tensor::randn([width, width], DOUBLE) * 0.2).set_requires_grad(true);
        let widths = [WIDTH, WIDTH, WIDTH / 2, WIDTH / 2, WIDTH / 3];
        Self {
            weights: widths.into_iter().map(weight).collect(),
        }
    }

    /// Sum of the losses of some samples. `sum` adds over all ranks that share the batch.
    fn loss(&self, x_bw: &Tensor, sum: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
        let centered = |y_bw: &Tensor| {
            let total = sum(&y_bw.sum_dim_intlist(0, false, Kind::Double));
            y_bw - total / SAMPLES as f64
        };
        let mut joined = Tensor::zeros([x_bw.size()[0]], DOUBLE);
        let mut x_bw = centered(&x_bw.matmul(&self.weights[0])).tanh();
        for weight in &self.weights[1..] {
            let width = weight.size()[0];
            let branch = centered(&x_bw.narrow(1, 0, width).matmul(weight)).tanh();
            joined += branch.square().sum_dim_intlist(1, false, Kind::Double);
            x_bw = &x_bw + centered(&x_bw).pow_tensor_scalar(3);
        }
        joined.sum(Kind::Double)
    }
}

/// Compares gradients over unequal shares, one of them empty, with those of the whole batch. The
/// buckets are small, so their reductions run between the sums of the backward pass.
pub fn sums(group: &ProcessGroup) {
    by_hand(group);
    around_parts(group);
    let (rank, size) = (group.rank() as usize, f64::from(group.world_size()));
    let (ours, alone) = (Branches::new(), Branches::new());
    tch::manual_seed(9);
    let x_bw = Tensor::randn([SAMPLES, WIDTH], DOUBLE);
    let cuts = match group.world_size() {
        2 => vec![0, 5, SAMPLES],
        _ => vec![0, 7, 7, SAMPLES],
    };
    let own_bw = x_bw.narrow(0, cuts[rank], cuts[rank + 1] - cuts[rank]);
    let mut options = small_buckets();
    (options.bucket_cap_bytes, options.first_bucket_bytes) = (2 << 10, 1 << 10);
    let mut reducer = Reducer::new(&ours.weights, group, &options).unwrap();
    let mut difference: f64 = 0.0;
    for _ in 0..3 {
        for weights in [&ours.weights, &alone.weights] {
            let mut weights: Vec<Tensor> = weights.iter().map(Tensor::shallow_clone).collect();
            zero_grad(&mut weights).unwrap();
        }
        reducer.prepare_for_forward().unwrap();
        let loss = ours.loss(&own_bw, &|own| group.sum(own).unwrap());
        reducer.prepare_for_backward().unwrap();
        backward(&(loss * size)).unwrap();
        backward(&alone.loss(&x_bw, &Tensor::shallow_clone)).unwrap();
        for (one, other) in ours.weights.iter().zip(&alone.weights) {
            let greatest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
            let found = greatest(&(one.grad() - other.grad())) / greatest(&other.grad());
            difference = difference.max(found);
        }
    }
    assert!(reducer.buckets().unwrap().len() > 2);
    assert!(take_sum_wait() > std::time::Duration::ZERO);
    println!("difference {difference:e}");
    group.barrier().unwrap();
}

/// A forward and a backward pass of a small network. Returns the first error.
pub fn pass(group: &ProcessGroup) -> roundhouse_c10d::Result<()> {
    let network = Branches::new();
    let x_bw = Tensor::ones([4, WIDTH], DOUBLE);
    let failed = RefCell::new(None);
    let loss = network.loss(&x_bw, &|own| {
        group.sum(own).unwrap_or_else(|error| {
            failed.borrow_mut().get_or_insert(error);
            own.shallow_clone()
        })
    });
    failed.take().map_or_else(|| backward(&loss), Err)
}

/// Runs passes until a peer is lost, which can die at any point of a pass.
pub fn sums_until_lost(group: &ProcessGroup) {
    for step in 0.. {
        if let Err(error) = pass(group) {
            assert!(error.is_peer_lost(), "{error:?}");
            println!("peer lost at step {step}: {error}");
            return;
        }
        println!("step {step}");
    }
}
