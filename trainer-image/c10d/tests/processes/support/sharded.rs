//! Weights that the ranks hold together, beside the same weights in one process.

use roundhouse_c10d::{Autocast, ProcessGroup, Sharding, backward, zero_grad};
use tch::{Device, Kind, TchError, Tensor};

#[cfg(feature = "fake-nccl")]
pub mod memory;

/// Cuts are at multiples of this number of elements, as in the trainer.
const BLOCK: i64 = 64;
/// Shapes of the first unit, which is used twice, and of the second.
const SHAPES: [&[&[i64]]; 2] = [&[&[9, 4], &[4]], &[&[4, 70], &[70, 4]]];

fn values(shape: &[i64], seed: i64) -> Tensor {
    let count: i64 = shape.iter().product();
    let angles = Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 + seed;
    angles.sin().reshape(shape)
}

fn length_of(tensor: &Tensor) -> i64 {
    tensor.size().iter().product()
}

fn weights(unit: usize) -> Vec<Tensor> {
    let seeds = (1..).map(|seed| seed * 10 + i64::try_from(unit).unwrap());
    let shapes = SHAPES[unit].iter().zip(seeds);
    shapes.map(|(shape, seed)| values(shape, seed)).collect()
}

/// The tokens of a rank in a pass.
fn tokens(rank: u32, pass: i64) -> Tensor {
    (Tensor::arange(6, (Kind::Int64, Device::Cpu)) * (i64::from(rank) + 2) + pass).remainder(9)
}

type Output = Result<Tensor, TchError>;

fn embed(tokens: &Tensor, weights: &[Tensor]) -> Output {
    Tensor::f_embedding(&weights[0], tokens, -1, false, false)?.f_add(&weights[1])
}

fn block(x: &Tensor, weights: &[Tensor]) -> Output {
    let inner = x.f_matmul(&weights[0])?.f_tanh()?;
    inner.f_matmul(&weights[1])?.f_add(x)
}

fn scores(x: &Tensor, weights: &[Tensor]) -> Output {
    // Without the second weight: its gradient here is 0.
    x.f_linear(&weights[0], None::<Tensor>)
}

fn loss(scores: &Tensor) -> Tensor {
    let scores = scores.to_kind(Kind::Float);
    (scores.log_softmax(-1, Kind::Float) * &scores).sum(Kind::Float)
}

/// The loss of one process, and its gradients in the order of the units.
fn in_one_process(rank: u32, passes: i64, precision: Kind) -> (f64, Vec<Tensor>) {
    let mut leaves: Vec<Vec<Tensor>> = (0..2).map(weights).collect();
    for leaf in leaves.iter_mut().flatten() {
        let _ = leaf.requires_grad_(true);
    }
    let mut sum = 0.0;
    for pass in 0..passes {
        let guard = Autocast::enter(Device::Cpu, precision).unwrap();
        let x = embed(&tokens(rank, pass), &leaves[0]).unwrap();
        let x = block(&x, &leaves[1]).unwrap();
        let loss = loss(&scores(&x, &leaves[0]).unwrap());
        drop(guard);
        backward(&loss).unwrap();
        sum += loss.double_value(&[]);
    }
    (sum, leaves.iter().flatten().map(Tensor::grad).collect())
}

struct Units {
    sharding: Sharding,
    starts: Vec<Vec<i64>>,
    shards: Vec<Tensor>,
}

impl Units {
    fn of(group: &ProcessGroup, keeps_whole: bool, sums: bool) -> Self {
        let sharding = Sharding::new(group, keeps_whole, sums).unwrap();
        let (rank, size) = (i64::from(group.rank()), i64::from(group.world_size()));
        let (mut all_starts, mut shards) = (Vec::new(), Vec::new());
        for unit in 0..2 {
            let own = weights(unit);
            let (mut starts, mut end) = (Vec::new(), 0);
            for tensor in &own {
                starts.push(end);
                end += (length_of(tensor) + BLOCK - 1) / BLOCK * BLOCK;
            }
            let part = (end / BLOCK + size - 1) / size * BLOCK;
            let whole = Tensor::zeros([part * size], (Kind::Float, Device::Cpu));
            for (tensor, start) in own.iter().zip(&starts) {
                let length = length_of(tensor);
                whole
                    .narrow(0, *start, length)
                    .copy_(&tensor.reshape([length]));
            }
            let cut = whole.narrow(0, rank * part, part);
            let cut = if keeps_whole {
                cut.detach()
            } else {
                cut.copy()
            };
            let shard = cut.set_requires_grad(true);
            let whole = keeps_whole.then_some(&whole);
            let index = sharding.add(&own, &starts, &shard, whole).unwrap();
            assert_eq!(index, unit);
            all_starts.push(starts);
            shards.push(shard);
        }
        Self {
            sharding,
            starts: all_starts,
            shards,
        }
    }

    fn scores(&self, tokens: &Tensor, recomputes: bool) -> roundhouse_c10d::Result<Tensor> {
        self.sharding.begin_pass()?;
        let apply = |unit, recomputes, x: &Tensor, run: fn(&Tensor, &[Tensor]) -> Output| {
            self.sharding
                .apply(unit, recomputes, x, move |x, weights| run(x, &weights))
        };
        let x = apply(0, false, tokens, embed)?;
        let x = apply(1, recomputes, &x, block)?;
        apply(0, false, &x, scores)
    }

    fn pass(
        &self,
        tokens: &Tensor,
        recomputes: bool,
        precision: Kind,
    ) -> roundhouse_c10d::Result<f64> {
        let guard = Autocast::enter(Device::Cpu, precision).unwrap();
        let loss = loss(&self.scores(tokens, recomputes)?);
        drop(guard);
        backward(&loss)?;
        self.sharding.end_pass()?;
        Ok(loss.double_value(&[]))
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

/// Each row of gradients is, bit for bit, the part of the gradient that its process would have
/// alone.
pub fn sharded(group: &ProcessGroup) {
    const PASSES: i64 = 3;
    for keeps_whole in [false, true] {
        for recomputes in [false, true] {
            for precision in [Kind::Float, Kind::BFloat16] {
                let units = Units::of(group, keeps_whole, false);
                // The second round follows an abandoned pass.
                for _ in 0..2 {
                    let mut loss = 0.0;
                    for pass in 0..PASSES {
                        let own = tokens(group.rank(), pass);
                        loss += units.pass(&own, recomputes, precision).unwrap();
                    }
                    compare(&units, group, loss, PASSES, precision);
                    let _ = units.scores(&tokens(0, 0), recomputes).unwrap();
                    let _ = units.pass(&tokens(1, 1), recomputes, precision).unwrap();
                    units.sharding.abandon().unwrap();
                }
                let scores = tch::no_grad(|| units.scores(&tokens(0, 0), recomputes)).unwrap();
                assert!(!scores.requires_grad());
                assert_eq!(units.sharding.failure(), None);
            }
        }
    }
    sums(group);
    println!("sharded ok");
}

/// The sum of the rows, in their order.
fn sums(group: &ProcessGroup) {
    let own = tokens(group.rank(), 0);
    let [apart, summed] = [false, true].map(|sums| {
        let units = Units::of(group, false, sums);
        let _ = units.pass(&own, false, Kind::Float).unwrap();
        units.sharding.gradients(1).unwrap()
    });
    let mut rows = (0..i64::from(group.world_size())).map(|row| apart.get(row));
    let first = rows.next().unwrap();
    let expected = rows.fold(first, |sum, row| sum + row).unsqueeze(0);
    assert_same_bits(&summed, &expected, "the sum of the rows");
}

fn compare(units: &Units, group: &ProcessGroup, loss: f64, passes: i64, precision: Kind) {
    let size = i64::from(group.world_size());
    let rows: Vec<Tensor> = (0..2)
        .map(|unit| units.sharding.gradients(unit).unwrap())
        .collect();
    for from in 0..group.world_size() {
        let (alone, gradients) = in_one_process(from, passes, precision);
        if from == group.rank() {
            assert!(
                (loss - alone).abs() < f64::EPSILON,
                "{loss} instead of {alone}"
            );
        }
        let mut gradients = gradients.into_iter();
        for (unit, rows) in rows.iter().enumerate() {
            let part = length_of(&units.shards[unit]);
            let expected = Tensor::zeros([part * size], (Kind::Float, Device::Cpu));
            for (start, gradient) in units.starts[unit].iter().zip(&mut gradients) {
                let length = length_of(&gradient);
                expected
                    .narrow(0, *start, length)
                    .copy_(&gradient.reshape([length]));
            }
            let own = expected.narrow(0, i64::from(group.rank()) * part, part);
            assert_same_bits(
                &rows.get(i64::from(from)),
                &own,
                &format!("unit {unit} of {from}"),
            );
        }
    }
}

/// Trains until a rank is killed; the others get an error that names a collective.
pub fn sharded_until_lost(group: &ProcessGroup) {
    let units = Units::of(group, false, true);
    for step in 0.. {
        let mut shards: Vec<Tensor> = units.shards.iter().map(Tensor::shallow_clone).collect();
        zero_grad(&mut shards).unwrap();
        if let Err(error) = units.pass(&tokens(0, step), true, Kind::Float) {
            assert!(units.sharding.failure().is_some(), "{error}");
            println!("peer lost: {error}");
            return;
        }
        println!("step {step}");
    }
}
