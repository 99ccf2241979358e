//! Experts of which each rank has some, beside the same experts in one process.

use roundhouse_c10d::{Autocast, Experts, ProcessGroup, Sharding, backward, zero_grad};
use tch::{Device, Kind, TchError, Tensor};

/// Number of experts of a rank.
const COUNT: i64 = 2;
const WIDTH: i64 = 5;
const INNER: i64 = 3;

type Output = Result<Tensor, TchError>;

fn values(shape: &[i64], seed: i64) -> Tensor {
    let count: i64 = shape.iter().product();
    let angles = Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 + seed;
    angles.sin().reshape(shape)
}

/// The two matrices of an expert.
fn weights(expert: i64) -> Vec<Tensor> {
    let shapes = [[WIDTH, INNER], [INNER, WIDTH]];
    let seeds = (0..).map(|part| 10 * expert + part);
    shapes
        .iter()
        .zip(seeds)
        .map(|(it, seed)| values(it, seed))
        .collect()
}

/// The rows of a rank in a pass. Ranks have different numbers of them, and so have passes.
fn rows(rank: u32, pass: i64, num_experts: i64) -> Tensor {
    let each = i64::from(rank) + 1 + pass;
    values(&[num_experts * each, WIDTH], 100 + pass + i64::from(rank))
}

/// The outputs of experts for equal numbers of rows of `x`.
fn run(x: &Tensor, weights: &[Tensor]) -> Output {
    let experts = weights.chunks(2);
    let rows = x.f_chunk(i64::try_from(experts.len()).unwrap_or(1), 0)?;
    let outputs = experts.zip(rows).map(|(expert, rows)| {
        rows.f_matmul(&expert[0])?
            .f_tanh()?
            .f_matmul(&expert[1])?
            .f_mul_scalar(0.5)
    });
    Tensor::f_cat(&outputs.collect::<Result<Vec<_>, _>>()?, 0)
}

/// What follows the experts: they are used twice, and the input also goes around them.
fn loss(x: &Tensor, apply: impl Fn(&Tensor) -> roundhouse_c10d::Result<Tensor>) -> Tensor {
    let y = apply(x).unwrap() + x;
    let z = apply(&y).unwrap();
    (z * y).to_kind(Kind::Float).sum(Kind::Float)
}

struct Units {
    sharding: Sharding,
    experts: Experts,
    own: Tensor,
}

impl Units {
    fn of(group: &ProcessGroup, sums: bool) -> Self {
        let sharding = Sharding::new(group, false, sums).unwrap();
        let first = i64::from(group.rank()) * COUNT;
        let own: Vec<Tensor> = (first..first + COUNT).flat_map(weights).collect();
        let length = WIDTH * INNER;
        let starts: Vec<i64> = (0..2 * COUNT).map(|it| it * length).collect();
        let flat: Vec<Tensor> = own.iter().map(|it| it.reshape([-1])).collect();
        let vector = Tensor::cat(&flat, 0).set_requires_grad(true);
        assert_eq!(sharding.add(&own, &starts, &vector, None).unwrap(), 0);
        let experts = Experts::of(&sharding).unwrap();
        Self {
            sharding,
            experts,
            own: vector,
        }
    }

    fn apply(&self, x: &Tensor) -> roundhouse_c10d::Result<Tensor> {
        let run = |x: &Tensor, weights: Vec<Tensor>| run(x, &weights);
        self.experts.apply(0, COUNT, x, run)
    }

    /// A pass over rows, and the loss and the gradient of the rows.
    fn pass(&self, rows: &Tensor, precision: Kind) -> (f64, Tensor) {
        self.sharding.begin_pass().unwrap();
        let x = rows.detach().set_requires_grad(true);
        let guard = Autocast::enter(Device::Cpu, precision).unwrap();
        let loss = loss(&x, |x| self.apply(x));
        drop(guard);
        backward(&loss).unwrap();
        self.sharding.end_pass().unwrap();
        (loss.double_value(&[]), x.grad())
    }
}

fn assert_same_bits(found: &Tensor, expected: &Tensor, what: &str) {
    // The sign of a zero does not count.
    let (found, expected) = (found + 0.0, expected + 0.0);
    assert!(
        found.equal(&expected),
        "{what}: {found} instead of {expected}"
    );
}

/// In one process: loss, the gradient of the rows, and those of the experts `[experts, elements]`,
/// summed over the passes.
fn in_one_process(
    rank: u32,
    passes: i64,
    size: i64,
    precision: Kind,
) -> (Vec<(f64, Tensor)>, Tensor) {
    let num_experts = size * COUNT;
    let all = (0..num_experts).flat_map(weights);
    let all: Vec<Tensor> = all.map(|it| it.set_requires_grad(true)).collect();
    let results = (0..passes).map(|pass| {
        let x = rows(rank, pass, num_experts).set_requires_grad(true);
        let guard = Autocast::enter(Device::Cpu, precision).unwrap();
        let loss = loss(&x, |x| Ok(run(x, &all).unwrap()));
        drop(guard);
        backward(&loss).unwrap();
        (loss.double_value(&[]), x.grad())
    });
    let results = results.collect();
    let gradients: Vec<Tensor> = all.iter().map(|it| it.grad().reshape([-1])).collect();
    (
        results,
        Tensor::cat(&gradients, 0).reshape([num_experts, -1]),
    )
}

/// Losses and gradients are, bit for bit, those that each process would have alone with all
/// experts.
pub fn experts(group: &ProcessGroup) {
    const PASSES: i64 = 3;
    let size = i64::from(group.world_size());
    for precision in [Kind::Float, Kind::BFloat16] {
        let units = Units::of(group, false);
        // The second round follows an abandoned pass.
        for _ in 0..2 {
            let own = |pass| rows(group.rank(), pass, size * COUNT);
            let found: Vec<_> = (0..PASSES)
                .map(|pass| units.pass(&own(pass), precision))
                .collect();
            let gradients = units.sharding.gradients(0).unwrap();
            for from in 0..group.world_size() {
                let (alone, expected) = in_one_process(from, PASSES, size, precision);
                if from == group.rank() {
                    for ((loss, of_rows), (loss_alone, of_rows_alone)) in found.iter().zip(&alone) {
                        assert!((loss - loss_alone).abs() < f64::EPSILON, "{loss}");
                        assert_same_bits(of_rows, of_rows_alone, "the gradient of the rows");
                    }
                }
                let own = expected.narrow(0, i64::from(group.rank()) * COUNT, COUNT);
                let row = gradients.get(i64::from(from));
                assert_same_bits(&row, &own.reshape([-1]), &format!("experts for {from}"));
            }
            let _ = units.pass(&own(1), precision);
            units.sharding.abandon().unwrap();
        }
        let x = rows(group.rank(), 0, size * COUNT);
        units.sharding.begin_pass().unwrap();
        let y = tch::no_grad(|| units.apply(&x)).unwrap();
        assert!(!y.requires_grad());
        let other = units.apply(&rows(group.rank(), 1, size * COUNT));
        let error = other.unwrap_err().to_string();
        assert!(error.contains("the same number"), "{error}");
        assert_eq!(units.sharding.failure(), None);
    }
    sums(group);
    println!("experts ok");
}

/// One batch for all processes gives the same sums but for rounding.
fn sums(group: &ProcessGroup) {
    let own = rows(group.rank(), 0, i64::from(group.world_size()) * COUNT);
    let [apart, summed] = [false, true].map(|sums| {
        let units = Units::of(group, sums);
        let (loss, of_rows) = units.pass(&own, Kind::Float);
        (loss, of_rows, units.sharding.gradients(0).unwrap())
    });
    assert!((apart.0 - summed.0).abs() < 1e-4, "{apart:?}, {summed:?}");
    assert!(apart.1.allclose(&summed.1, 1e-5, 1e-6, false));
    let sum = apart.2.sum_dim_intlist(0, true, Kind::Float);
    assert!(sum.allclose(&summed.2, 1e-4, 1e-5, false));
}

/// Trains until a rank is killed; the others get an error that names a collective.
pub fn experts_until_lost(group: &ProcessGroup) {
    let units = Units::of(group, true);
    let own = rows(group.rank(), 0, i64::from(group.world_size()) * COUNT);
    for step in 0.. {
        zero_grad(&mut [units.own.shallow_clone()]).unwrap();
        units.sharding.begin_pass().unwrap();
        let y = units.apply(&own).map(|y| y.sum(Kind::Float));
        if let Err(error) = y.and_then(|loss| backward(&loss)) {
            assert!(units.sharding.failure().is_some(), "{error}");
            println!("peer lost: {error}");
            return;
        }
        units.sharding.end_pass().unwrap();
        println!("step {step}");
    }
}
