//! The memory of weights that the ranks hold together.

use roundhouse_c10d::{ProcessGroup, Sharding, backward, count_memory, counted_memory, zero_grad};
use tch::{Device, Kind, Tensor};

const NUM_UNITS: i64 = 6;
/// Number of matrices of a unit, and their width.
const NUM_MATRICES: i64 = 8;
const WIDTH: i64 = 192;
/// Elements of the vector of a unit.
const LENGTH: i64 = NUM_MATRICES * WIDTH * WIDTH;
const BYTES: i64 = 4;

/// The peak of a pass is that of the formula: the ranks' parts of weights and gradients, and while
/// a unit computes in the backward pass its vector, that of the unit before it, its gradient, and
/// the gradient of the unit after it, which is sent and received.
pub fn memory(group: &ProcessGroup) {
    count_memory();
    let size = i64::from(group.world_size());
    for keeps_whole in [false, true] {
        for recomputes in [false, true] {
            let (before, _) = counted_memory();
            let sharding = Sharding::new(group, keeps_whole, true).unwrap();
            let mut shards = Vec::new();
            for _ in 0..NUM_UNITS {
                let matrix = Tensor::zeros([1], (Kind::Float, Device::Cpu));
                let matrix = matrix.expand([WIDTH, WIDTH], false);
                let like: Vec<Tensor> = (0..NUM_MATRICES).map(|_| matrix.shallow_clone()).collect();
                let starts: Vec<i64> = (0..NUM_MATRICES).map(|it| it * WIDTH * WIDTH).collect();
                let part = LENGTH / size;
                let whole =
                    keeps_whole.then(|| Tensor::zeros([LENGTH], (Kind::Float, Device::Cpu)));
                let shard = match &whole {
                    Some(whole) => whole.narrow(0, i64::from(group.rank()) * part, part),
                    None => Tensor::zeros([part], (Kind::Float, Device::Cpu)),
                };
                let shard = shard.detach().set_requires_grad(true);
                sharding
                    .add(&like, &starts, &shard, whole.as_ref())
                    .unwrap();
                shards.push(shard);
            }
            let (held, _) = counted_memory();
            for _ in 0..3 {
                pass(&sharding, recomputes);
                for unit in 0..shards.len() {
                    drop(sharding.gradients(unit).unwrap());
                }
            }
            zero_grad(&mut shards).unwrap();
            let (after, peak) = counted_memory();
            let part = LENGTH * BYTES / size;
            let weights = if keeps_whole { LENGTH * BYTES } else { part };
            assert_close(held - before, NUM_UNITS * weights, "at rest");
            assert_close(after, held, "after the passes");
            // The engine computes the gradient of a matrix before it adds it up.
            let matrix = WIDTH * WIDTH * BYTES;
            let expected = held
                + matrix
                + if keeps_whole {
                    // While unit 0 computes, the gradients of units 2 and later have been summed.
                    3 * LENGTH * BYTES + (NUM_UNITS - 2) * part
                } else {
                    // While unit 1 computes, the gradients of units 3 and later have been summed.
                    5 * LENGTH * BYTES + (NUM_UNITS - 3) * part
                };
            assert_close(
                peak,
                expected,
                &format!("keeps {keeps_whole}, recomputes {recomputes}"),
            );
        }
    }
    println!("memory ok");
}

fn pass(sharding: &Sharding, recomputes: bool) {
    sharding.begin_pass().unwrap();
    let mut x = Tensor::ones([1, WIDTH], (Kind::Float, Device::Cpu));
    for unit in 0..usize::try_from(NUM_UNITS).unwrap() {
        let run = |x: &Tensor, weights: Vec<Tensor>| {
            let mut x = x.shallow_clone();
            for matrix in weights {
                x = x.f_matmul(&matrix)?;
            }
            Ok(x)
        };
        x = sharding.apply(unit, recomputes, &x, run).unwrap();
    }
    backward(&x.sum(Kind::Float)).unwrap();
    drop(x);
    sharding.end_pass().unwrap();
}

/// Activations are small beside a vector.
fn assert_close(found: i64, expected: i64, what: &str) {
    let apart = (found - expected).abs();
    let vectors = |bytes: i64| bytes as f64 / (LENGTH * BYTES) as f64;
    let (found, expected) = (vectors(found), vectors(expected));
    assert!(
        apart < LENGTH * BYTES / 20,
        "{what}: {found:.2} instead of {expected:.2} vectors"
    );
}
