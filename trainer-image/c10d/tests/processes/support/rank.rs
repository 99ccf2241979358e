//! The programs that the ranks of the tests run.

use super::{exchange, power_sgd, sums};

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use roundhouse_c10d::{
    Backend, CommHook, GroupOptions, PowerSgd, ProcessGroup, ReduceOp, Reducer, ReducerOptions,
    Store, backward, zero_grad,
};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const SAMPLES: i64 = 32;
const SLOW_STEPS: u32 = 16;
const PAUSE: Duration = Duration::from_millis(400);

fn number(name: &str) -> u32 {
    std::env::var(name).unwrap().parse().unwrap()
}

pub fn main() {
    tch::set_num_threads(1);
    let (rank, size) = (number("RANK"), number("WORLD_SIZE"));
    let port = u16::try_from(number("PORT")).unwrap();
    let timeout = Duration::from_secs(10);
    let root = Store::connect("127.0.0.1", port, timeout).unwrap();
    let store = root.prefix("gen1").unwrap();
    let group = ProcessGroup::new(&store, rank, size, &options("gen1")).unwrap();
    match std::env::var("PROGRAM").unwrap().as_str() {
        "collectives" => collectives(&group),
        "parity" => parity(&group, i64::from(number("MICRO"))),
        "slow_rank" => slow_rank(&group),
        "exchange" => exchange::exchange(&group),
        "exchange_until_lost" => exchange::exchange_until_lost(&group),
        "digests" => super::digests::digests(&group),
        "agreement" => exchange::agreement(&group),
        "reducers" => exchange::reducers(&group),
        "layouts" => exchange::layouts(&group),
        "unused" => exchange::unused(&group),
        "power_sgd" => power_sgd::as_pytorch(&group),
        "power_sgd_memory" => power_sgd::memory(&group),
        "power_sgd_half" => power_sgd::half(&group),
        "power_sgd_degenerate" => power_sgd::degenerate(&group),
        "experts" => super::experts::experts(&group),
        "experts_until_lost" => super::experts::experts_until_lost(&group),
        "sharded" => super::sharded::sharded(&group),
        #[cfg(feature = "fake-nccl")]
        "sharded_memory" => super::sharded::memory::memory(&group),
        "sharded_until_lost" => super::sharded::sharded_until_lost(&group),
        "sums" => sums::sums(&group),
        "sums_until_lost" => sums::sums_until_lost(&group),
        "train_until_lost" => train_until_lost(&group),
        "move_until_aborted" => super::abrupt::move_until_aborted(group, &store),
        #[cfg(feature = "fake-nccl")]
        "sum_until_aborted" => super::abort::sum_until_aborted(group, &store),
        #[cfg(feature = "fake-nccl")]
        "train_until_aborted" => super::abort::train_until_aborted(group, &store),
        #[cfg(feature = "fake-nccl")]
        "abort_within_a_launch" => super::abort::abort_within_a_launch(group),
        #[cfg(feature = "fake-nccl")]
        "pass_until_aborted" => super::abort::pass_until_aborted(group, &store),
        #[cfg(feature = "fake-nccl")]
        "switch" => super::endings::switch(group, &root),
        #[cfg(feature = "fake-nccl")]
        "drop_without_shutdown" => super::endings::drop_without_shutdown(group),
        #[cfg(feature = "fake-nccl")]
        "shut_down_within_a_collective" => {
            super::endings::shut_down_within_a_collective(group, &root);
        }
        other => panic!("no program {other}"),
    }
}

pub fn options(name: &str) -> GroupOptions {
    let milliseconds = std::env::var("TIMEOUT_MS").map_or(10_000, |value| value.parse().unwrap());
    GroupOptions {
        backend: backend(),
        timeout: Duration::from_millis(milliseconds),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        own_store_port: None,
        name: name.to_owned(),
    }
}

#[cfg(feature = "fake-nccl")]
pub fn sum_of_ones(group: &ProcessGroup) -> f64 {
    let mut tensor = Tensor::from_slice(&[1.0]);
    group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
    f64::try_from(tensor).unwrap()
}

fn backend() -> Backend {
    #[cfg(feature = "fake-nccl")]
    if std::env::var("BACKEND").is_ok_and(|value| value == "nccl") {
        return Backend::FakeNccl;
    }
    Backend::Gloo
}

fn collectives(group: &ProcessGroup) {
    let (rank, size) = (i64::from(group.rank()), i64::from(group.world_size()));
    let reduced = |operation| {
        let mut tensor = Tensor::from_slice(&[rank, -rank]);
        group.all_reduce(&mut tensor, operation).unwrap();
        Vec::<i64>::try_from(tensor).unwrap()
    };
    let sum = size * (size - 1) / 2;
    assert_eq!(reduced(ReduceOp::Sum), [sum, -sum]);
    assert_eq!(reduced(ReduceOp::Min), [0, 1 - size]);
    assert_eq!(reduced(ReduceOp::Max), [size - 1, 0]);
    let mut one = Tensor::from_slice(&[rank]);
    group.broadcast(&mut one, group.world_size() - 1).unwrap();
    assert_eq!(i64::try_from(one).unwrap(), size - 1);
    // Every third tensor is empty.
    let mut each: Vec<Tensor> = (0..size)
        .map(|root| Tensor::full([root % 3], rank, (Kind::Int64, Device::Cpu)))
        .collect();
    group.broadcast_each(&mut each).unwrap();
    for (root, tensor) in (0..).zip(&each) {
        assert!(tensor.equal(&(tensor.zeros_like() + root)), "{root}");
    }
    assert!(group.broadcast_each(&mut each[1..]).is_err());
    let mut many = [
        Tensor::from_slice(&[rank + 7]),
        Tensor::full([3], rank, (Kind::Float, Device::Cpu)),
    ];
    group.broadcast_coalesced(&mut many, 0).unwrap();
    // The memory layout differs between ranks.
    let mut numbers = Tensor::arange(6, (Kind::Float, Device::Cpu)).view([2, 3]) + rank as f64;
    if rank > 0 {
        numbers = numbers.tr().contiguous().tr();
    }
    group
        .broadcast_coalesced(std::slice::from_mut(&mut numbers), 0)
        .unwrap();
    let flat = Vec::<f32>::try_from(numbers.contiguous().view([-1])).unwrap();
    assert_eq!(flat, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(many[0].int64_value(&[0]), 7);
    assert_eq!(many[1].double_value(&[2]), 0.0);
    group.barrier().unwrap();
    assert!(
        group
            .broadcast(&mut Tensor::from_slice(&[1]), group.world_size())
            .is_err()
    );
    assert!(
        group
            .all_reduce(
                &mut Tensor::ones([2, 3], (Kind::Float, Device::Cpu)).tr(),
                ReduceOp::Sum
            )
            .is_err()
    );
    println!("collectives ok");
}

pub fn network(path: &nn::Path) -> nn::Sequential {
    nn::seq()
        .add(nn::linear(path / "a", 64, 256, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(path / "b", 256, 10, Default::default()))
}

pub fn small_buckets() -> ReducerOptions {
    ReducerOptions {
        bucket_cap_bytes: 64 << 10,
        first_bucket_bytes: 4 << 10,
        ..ReducerOptions::default()
    }
}

/// 20 steps of SGD with momentum on this rank's share, compared with the same steps on all samples.
fn parity(group: &ProcessGroup, micro: i64) {
    tch::manual_seed(3);
    let vars = nn::VarStore::new(Device::Cpu);
    let model = network(&vars.root());
    let mut alone_vars = nn::VarStore::new(Device::Cpu);
    let alone = network(&alone_vars.root());
    alone_vars.copy(&vars).unwrap();
    let images = Tensor::randn([SAMPLES, 64], (Kind::Float, Device::Cpu));
    let labels = Tensor::randint(10, [SAMPLES], (Kind::Int64, Device::Cpu));

    let (rank, size) = (i64::from(group.rank()), i64::from(group.world_size()));
    let (begin, end) = (SAMPLES * rank / size, SAMPLES * (rank + 1) / size);
    let mut reducer = Reducer::new(&vars.trainable_variables(), group, &small_buckets()).unwrap();
    let mut optimizer = nn::sgd(0.9, 0., 1e-4, false).build(&vars, 0.05).unwrap();
    let mut alone_optimizer = nn::sgd(0.9, 0., 1e-4, false)
        .build(&alone_vars, 0.05)
        .unwrap();
    for _ in 0..20 {
        zero_grad(&mut vars.trainable_variables()).unwrap();
        for part in 0..micro {
            let first = begin + (end - begin) * part / micro;
            let last = begin + (end - begin) * (part + 1) / micro;
            reducer.prepare_for_forward().unwrap();
            let logits = model.forward(&images.narrow(0, first, last - first));
            let losses = logits.cross_entropy_loss::<Tensor>(
                &labels.narrow(0, first, last - first),
                None,
                tch::Reduction::Sum,
                -100,
                0.0,
            );
            if part + 1 == micro {
                reducer.prepare_for_backward().unwrap();
            }
            backward(&(losses * (size as f64 / SAMPLES as f64))).unwrap();
        }
        optimizer.step();
        alone_optimizer.backward_step(&alone.forward(&images).cross_entropy_for_logits(&labels));
    }
    let mut difference: f64 = 0.0;
    for (one, other) in vars
        .trainable_variables()
        .iter()
        .zip(alone_vars.trainable_variables())
    {
        let scale = other.abs().max().double_value(&[]).max(1e-12);
        difference = difference.max((one - &other).abs().max().double_value(&[]) / scale);
    }
    println!("difference {difference:e}");
    group.barrier().unwrap();
}

/// The last rank pauses before its forward pass or before its backward pass, and the others wait
/// for it. This is measured after the first steps and after many steps, which libtorch would not
/// measure by default.
fn slow_rank(group: &ProcessGroup) {
    let vars = nn::VarStore::new(Device::Cpu);
    let model = network(&vars.root());
    let images = Tensor::randn([SAMPLES, 64], (Kind::Float, Device::Cpu));
    let labels = Tensor::randint(10, [SAMPLES], (Kind::Int64, Device::Cpu));
    // The first pass of a process takes longer, so run one before the measurement.
    backward(&model.forward(&images).cross_entropy_for_logits(&labels)).unwrap();
    let mut reducer = Reducer::new(&vars.trainable_variables(), group, &small_buckets()).unwrap();
    assert_eq!(reducer.waited().unwrap(), None);
    let is_slow = group.rank() + 1 == group.world_size();
    let mut waits = Vec::new();
    for step in 0..SLOW_STEPS {
        let pause = |pass| {
            if is_slow && step % 2 == pass {
                std::thread::sleep(PAUSE);
            }
        };
        zero_grad(&mut vars.trainable_variables()).unwrap();
        pause(0);
        reducer.prepare_for_forward().unwrap();
        let loss = model.forward(&images).cross_entropy_for_logits(&labels);
        pause(1);
        reducer.prepare_for_backward().unwrap();
        backward(&loss).unwrap();
        waits.push(reducer.waited().unwrap().unwrap());
    }
    // On a busy machine any rank may be late once.
    waits.sort();
    let usual = waits[waits.len() / 2];
    assert_eq!(usual < PAUSE / 2, is_slow, "{waits:?}");
    println!("slow rank ok");
}

fn train_until_lost(group: &ProcessGroup) {
    let mut trainer = Trainer::new(group);
    for step in 0.. {
        if let Err(error) = trainer.step() {
            assert!(error.is_peer_lost(), "{error:?}");
            println!("peer lost at step {step}: {error}");
            return;
        }
        println!("step {step}");
    }
}

fn hook() -> CommHook {
    match std::env::var("HOOK").as_deref() {
        Ok("PowerSGD") => CommHook::PowerSgd(PowerSgd::default()),
        _ => CommHook::None,
    }
}

/// Computes gradients of a small network in each step.
pub struct Trainer {
    vars: nn::VarStore,
    model: nn::Sequential,
    images: Tensor,
    labels: Tensor,
    reducer: Reducer,
}

impl Trainer {
    pub fn new(group: &ProcessGroup) -> Self {
        tch::manual_seed(3);
        let vars = nn::VarStore::new(Device::Cpu);
        let model = network(&vars.root());
        let options = ReducerOptions {
            hook: hook(),
            ..small_buckets()
        };
        let reducer = Reducer::new(&vars.trainable_variables(), group, &options);
        Self {
            model,
            images: Tensor::randn([SAMPLES, 64], (Kind::Float, Device::Cpu)),
            labels: Tensor::randint(10, [SAMPLES], (Kind::Int64, Device::Cpu)),
            reducer: reducer.unwrap(),
            vars,
        }
    }

    pub fn step(&mut self) -> roundhouse_c10d::Result<()> {
        zero_grad(&mut self.vars.trainable_variables())?;
        self.reducer.prepare_for_forward()?;
        let scores = self.model.forward(&self.images);
        let loss = scores.cross_entropy_for_logits(&self.labels);
        self.reducer.prepare_for_backward()?;
        backward(&loss)
    }

    #[cfg(feature = "fake-nccl")]
    pub fn gradients_are_finite(&self) -> bool {
        let vars = self.vars.trainable_variables();
        vars.iter()
            .all(|var| var.grad().isfinite().all().int64_value(&[]) == 1)
    }
}
