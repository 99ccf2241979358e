//! Ranks that send their gradients with `PowerSGD`.

use std::collections::HashMap;
use std::path::Path;

use roundhouse_c10d::{
    CommHook, PowerSgd, ProcessGroup, ReduceOp, Reducer, ReducerOptions, backward, zero_grad,
};
use tch::{Device, Kind, Tensor};

/// The shapes in `fixtures/power_sgd.py`.
const SHAPES: [&[i64]; 7] = [
    &[12, 20],
    &[12],
    &[10, 2, 3, 3],
    &[20, 12],
    &[12, 20],
    &[4, 4],
    &[12, 20],
];
const BUCKETS: [&[usize]; 2] = [&[6, 5, 4, 3], &[2, 1, 0]];
const SEED: u64 = 7;
const PLAIN_STEPS: i64 = 2;
const STEPS: i64 = 10;
const RANKS: [u32; 3] = [1, 2, 3];
/// Tolerance relative to the largest gradient.
const TOLERANCE: f64 = 1e-5;

/// Irregular numbers between -1 and 1, the same as in the script.
fn gradient(parameter: usize, rank: u32, step: i64) -> Tensor {
    let shape = SHAPES[parameter];
    let count: i64 = shape.iter().product();
    let places = Tensor::arange(count, (Kind::Double, Device::Cpu))
        + (1000 * i64::try_from(parameter).unwrap() + 401 * i64::from(rank) + 97 * step + 1);
    let numbers = (places.square() * 0.7).sin();
    numbers.to_kind(Kind::Float).view(shape)
}

/// Parameters whose gradients a test sets.
struct Replica<'a> {
    group: &'a ProcessGroup,
    parameters: Vec<Tensor>,
    reducer: Reducer,
}

impl<'a> Replica<'a> {
    fn new(group: &'a ProcessGroup, hook: CommHook) -> Self {
        Self::packed(group, hook, &BUCKETS)
    }

    fn packed(group: &'a ProcessGroup, hook: CommHook, buckets: &[&[usize]]) -> Self {
        let parameters: Vec<Tensor> = SHAPES
            .iter()
            .map(|shape| Tensor::zeros(*shape, (Kind::Float, Device::Cpu)).set_requires_grad(true))
            .collect();
        let options = ReducerOptions {
            hook,
            buckets: Some(buckets.iter().map(|bucket| bucket.to_vec()).collect()),
            ..ReducerOptions::default()
        };
        Self {
            group,
            reducer: Reducer::new(&parameters, group, &options).unwrap(),
            parameters,
        }
    }

    fn compressing(group: &'a ProcessGroup, rank: u32) -> Self {
        Self::new(
            group,
            CommHook::PowerSgd(PowerSgd {
                rank,
                seed: SEED,
                ..PowerSgd::default()
            }),
        )
    }

    /// The means over the ranks after a pass in which this rank has the given gradients.
    fn pass(&mut self, own: impl Fn(usize) -> Tensor) -> Vec<Tensor> {
        self.try_pass(own).unwrap();
        self.parameters
            .iter()
            .map(|parameter| parameter.grad().copy())
            .collect()
    }

    fn try_pass(&mut self, own: impl Fn(usize) -> Tensor) -> roundhouse_c10d::Result<()> {
        zero_grad(&mut self.parameters)?;
        self.reducer.prepare_for_forward()?;
        let parts = self.parameters.iter().enumerate();
        let loss: Tensor = parts
            .map(|(index, parameter)| (parameter * own(index)).sum(Kind::Float))
            .sum();
        self.reducer.prepare_for_backward()?;
        backward(&loss)
    }

    fn step(&mut self, step: i64) -> Vec<Tensor> {
        let rank = self.group.rank();
        self.pass(|index| gradient(index, rank, step))
    }
}

fn difference(found: &Tensor, wanted: &Tensor) -> f64 {
    let scale = wanted.abs().max().double_value(&[]).max(1e-12);
    (found - wanted).abs().max().double_value(&[]) / scale
}

fn greatest_difference(found: &[Tensor], wanted: &[Tensor]) -> f64 {
    found
        .iter()
        .zip(wanted)
        .fold(0.0, |most: f64, (found, wanted)| {
            most.max(difference(found, wanted))
        })
}

/// Fails unless all ranks have the same bits.
fn assert_alike(group: &ProcessGroup, gradients: &[Tensor]) {
    let own = Tensor::cat(
        &gradients.iter().map(|it| it.view([-1])).collect::<Vec<_>>(),
        0,
    );
    let mut first = own.copy();
    group.broadcast(&mut first, 0).unwrap();
    assert_eq!(own.view_dtype(Kind::Int), first.view_dtype(Kind::Int));
}

/// Compares with `PyTorch`'s hook for the same gradients, with several matrices of one shape in a
/// bucket.
pub fn as_pytorch(group: &ProcessGroup) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/power_sgd.safetensors");
    let fixture: HashMap<String, Tensor> = Tensor::read_safetensors(path)
        .unwrap()
        .into_iter()
        .collect();
    let mut greatest = 0.0_f64;
    for rank in RANKS {
        let hook = CommHook::PowerSgd(PowerSgd {
            rank,
            plain_passes: u64::try_from(PLAIN_STEPS).unwrap(),
            seed: SEED,
            ..PowerSgd::default()
        });
        let mut replica = Replica::new(group, hook);
        let whole = CommHook::None.payload_bytes(&replica.parameters);
        for step in 0..STEPS {
            let found = replica.step(step);
            assert_alike(group, &found);
            let expected = if step < PLAIN_STEPS {
                whole
            } else {
                hook.payload_bytes(&replica.parameters)
            };
            assert_eq!(replica.reducer.payload_bytes(), Some(expected));
            for (index, found) in found.iter().enumerate() {
                let Some(wanted) = fixture.get(&format!("{rank}.{step}.{index}")) else {
                    continue;
                };
                let difference = difference(found, wanted);
                assert!(
                    difference <= TOLERANCE,
                    "rank {rank}, step {step}, parameter {index}: {difference:e}"
                );
                greatest = greatest.max(difference);
            }
        }
        assert!(hook.payload_bytes(&replica.parameters) < whole);
    }
    println!("difference {greatest:e}");
}

/// Compression errors are kept until a pass is not used.
pub fn memory(group: &ProcessGroup) {
    let own = group.rank();
    // The sent gradients add up to the original gradients.
    let mut replica = Replica::compressing(group, 2);
    let constant = |index: usize| gradient(index, own, 0);
    let mean = Replica::new(group, CommHook::None).pass(constant);
    let first = replica.pass(constant);
    assert!(
        greatest_difference(&first, &mean) > 0.1,
        "there is no compression error"
    );
    let num_passes = 400;
    let mut sums = first.iter().map(Tensor::copy).collect::<Vec<_>>();
    for _ in 1..num_passes {
        for (sum, sent) in sums.iter_mut().zip(replica.pass(constant)) {
            *sum += sent;
        }
    }
    let means: Vec<Tensor> = sums.iter().map(|sum| sum / f64::from(num_passes)).collect();
    let left = greatest_difference(&means, &mean);
    assert!(left < 0.05, "{left}");

    // Parameters in `whole` are not compressed.
    let options = ReducerOptions {
        hook: CommHook::PowerSgd(PowerSgd::default()),
        whole: vec![4, 0],
        ..ReducerOptions::default()
    };
    replica.reducer = Reducer::new(&replica.parameters, group, &options).unwrap();
    let sent = replica.pass(constant);
    for index in [0, 4, 3] {
        let is_exact = difference(&sent[index], &mean[index]) <= 1e-6;
        assert_eq!(is_exact, index != 3, "parameter {index}");
    }
    let mut replica = Replica::compressing(group, 2);

    // All ranks detect a pass that is not finite, and a Reducer that forgets it behaves like a new
    // one.
    for poison in [f32::NAN, f32::INFINITY] {
        let spoilt = |index: usize| {
            let gradient = gradient(index, own, 1);
            if own == 0 && index == 4 {
                let _ = gradient.view([-1]).get(3).fill_(f64::from(poison));
            }
            gradient
        };
        let seen = replica.pass(spoilt);
        assert_eq!(seen[4].isfinite().any().int64_value(&[]), 0);
        let others = [0, 1, 2].map(|index| seen[index].isfinite().all().int64_value(&[]));
        assert_eq!(others, [1, 1, 1], "the other bucket");
        replica.reducer.forget().unwrap();
        for (found, wanted) in replica.pass(constant).iter().zip(&first) {
            assert_eq!(found, wanted);
        }
    }

    // A scaled loss scales only the gradients.
    let [mut plain, mut scaled] = [(), ()].map(|()| Replica::compressing(group, 2));
    let mut before = 1.0;
    for factor in [1.0, 4.0, 4.0, 2.0] {
        scaled.reducer.rescale(factor / before).unwrap();
        before = factor;
        let wanted = plain.pass(constant);
        for (found, wanted) in scaled
            .pass(|index| constant(index) * factor)
            .iter()
            .zip(wanted)
        {
            assert_eq!(*found, wanted * factor);
        }
    }
    println!("memory ok");
}

/// Matrices of zeros, and matrices with fewer independent columns than the factors.
pub fn degenerate(group: &ProcessGroup) {
    let own = f64::from(group.rank());
    let mut replica = Replica::compressing(group, 3);
    let zeros = |index: usize| Tensor::zeros(SHAPES[index], (Kind::Float, Device::Cpu));
    for sent in replica.pass(zeros) {
        assert_eq!(sent.abs().max().double_value(&[]), 0.0);
    }
    // One column is enough for a product of two vectors, so there is no error. A matrix that was 0
    // before is sent, too.
    let product = |index: usize| {
        let shape = SHAPES[index];
        let rows = Tensor::arange(shape[0], (Kind::Float, Device::Cpu)) + 1.0;
        let length: i64 = shape[1..].iter().product();
        let row = Tensor::arange(length, (Kind::Float, Device::Cpu)) - 2.5;
        (rows.unsqueeze(1) * row * (1.0 + own)).view(shape)
    };
    let mean = Replica::new(group, CommHook::None).pass(product);
    for _ in 0..5 {
        let found = replica.pass(product);
        let difference = greatest_difference(&found, &mean);
        assert!(difference <= TOLERANCE, "{difference:e}");
        assert_alike(group, &found);
    }
    println!("degenerate ok");
}

/// The last rank takes part in the first sum of a bucket and leaves before the second sum.
pub fn half(group: &ProcessGroup) {
    let settings = PowerSgd::default();
    let all: Vec<usize> = (0..SHAPES.len()).collect();
    let mut replica = Replica::packed(group, CommHook::PowerSgd(settings), &[&all]);
    if group.rank() + 1 == group.world_size() {
        let num_first = SHAPES.map(|shape| match settings.columns(shape) {
            Some(1) => shape[0],
            columns => {
                assert_eq!(columns, None);
                shape.iter().product()
            }
        });
        let first = [num_first.iter().sum()];
        let mut part = Tensor::zeros(first, (Kind::Float, Device::Cpu));
        group.all_reduce(&mut part, ReduceOp::Sum).unwrap();
    } else {
        let error = replica.try_pass(|index| gradient(index, 0, 0)).unwrap_err();
        assert!(error.is_peer_lost(), "{error:?}");
    }
    println!("half ok");
}
