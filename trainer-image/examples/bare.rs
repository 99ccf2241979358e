//! The step of the trainer without what makes it elastic: no agreement, no checksum, no ledger, no
//! membership, no metrics. `make bench-trainer` measures the trainer beside it.
//!
//! Environment: `CONFIG` (a file), `DATA_DIR`, `RANK`, `WORLD_SIZE`, `PORT`, `STEPS`. Rank 0 prints
//! steps per second.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use roundhouse_c10d::{Backend, GroupOptions, ProcessGroup, ReducerOptions, Store};
use roundhouse_elastic::{Batch, Permutation};
use roundhouse_member::World;
use roundhouse_trainer::gradients::{Inputs, OwnLoss, gradients};
use roundhouse_trainer::group::C10dGroup;
use roundhouse_trainer::stopwatch::Stopwatch;
use roundhouse_trainer::sync::{Alone, Commit, Ddp, DdpOptions, Sync};
use roundhouse_trainer::tch::Device;
use roundhouse_trainer::tracing::Tracer;
use roundhouse_trainer::{Failure, Job, Rate, Setup, Signals, clip, config};

#[path = "../src/build.rs"]
mod build;

const WARM_UP: u64 = 5;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Failure> {
    let (rank, size): (u32, u32) = (variable("RANK")?, variable("WORLD_SIZE")?);
    let (num_steps, data_dir): (u64, PathBuf) = (variable("STEPS")?, variable("DATA_DIR")?);
    let config = config::read(&variable::<PathBuf>("CONFIG")?)?;
    let Job {
        mut task,
        mut train,
        update,
        ..
    } = build::build(&Setup {
        config: &config,
        data_dir: &data_dir,
        device: Device::Cpu,
    })?;
    let mut update = update(task.parameters())?;
    let (world, mut sync): (_, Box<dyn Sync>) = if size == 1 {
        (World::alone(), Box::new(Alone::new(None, 1)))
    } else {
        let world = World::of(C10dGroup::new(meet(rank, size)?, Device::Cpu));
        let options = DdpOptions {
            reducer: ReducerOptions::default(),
            micro_batch_size: None,
            group_size: 1,
            num_numbers: 0,
            commit: Commit::Host,
        };
        let sync = match world.group() {
            Some(group) => Ddp::new(group.process_group(), task.parameters(), options),
            None => return Err(Failure::internal("a world without a group")),
        };
        (
            world,
            Box::new(sync.map_err(|error| Failure::internal(error.to_string()))?),
        )
    };
    let mut tracer = Tracer::new(None, 0, Device::Cpu);
    let batch_size = u64::from(config.global_batch_size);
    let num_batches = train.num_samples() / batch_size;
    let mut began = Instant::now();
    let num_samples = train.num_samples();
    let order = |batch: &Batch| Permutation::new(num_samples, config.seed, batch.epoch);
    let batch = |number: u64| {
        let (epoch, place) = (number / num_batches, number % num_batches);
        Batch {
            step: number + 1,
            epoch,
            places: place * batch_size..(place + 1) * batch_size,
            ends_epoch: place + 1 == num_batches,
        }
    };
    for number in 0..WARM_UP + num_steps {
        if number == WARM_UP {
            began = Instant::now();
        }
        let (batch, next) = (batch(number), batch(number + 1));
        let (order, order_of_next) = (order(&batch), order(&next));
        let mut inputs = Inputs {
            task: task.as_mut(),
            source: train.as_mut(),
            order: &order,
            batch: &batch,
            // As the trainer does: the source reads ahead.
            next: Some((&next, &order_of_next)),
            seed: config.seed,
            precision: config.precision,
            loss_factor: None,
        };
        let mut stopwatch = Stopwatch::on_host();
        let mut nothing = |_| Vec::new();
        let sync = sync.as_mut();
        let done = gradients(
            &mut inputs,
            sync,
            &world,
            Some(&mut nothing),
            &mut stopwatch,
            &mut tracer,
        )?;
        let measured = clip::measure(task.parameters(), None, config.optimizer.max_grad_norm)?;
        let has_loss = matches!(done.local_loss, OwnLoss::Host(loss) if loss.is_finite());
        assert!(has_loss && measured.is_finite);
        let rate = Rate {
            learning_rate: config.optimizer.learning_rate,
            step: batch.step,
        };
        let signals = Signals {
            skip: None,
            divisor: measured.divisor.as_ref(),
        };
        update.apply(task.parameters_mut(), rate, signals)?;
    }
    if rank == 0 {
        println!("{:.2}", num_steps as f64 / began.elapsed().as_secs_f64());
    }
    Ok(())
}

fn variable<T: FromStr>(name: &str) -> Result<T, Failure> {
    let text = std::env::var(name);
    let value = text.ok().and_then(|text| text.parse().ok());
    value.ok_or_else(|| Failure::internal(format!("{name} is not set, or cannot be read")))
}

fn meet(rank: u32, size: u32) -> Result<ProcessGroup, Failure> {
    let port: u16 = variable("PORT")?;
    let store = if rank == 0 {
        Store::host(port, TIMEOUT)?
    } else {
        Store::connect("127.0.0.1", port, TIMEOUT)?
    };
    let options = GroupOptions {
        backend: Backend::Gloo,
        timeout: TIMEOUT,
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        own_store_port: None,
        name: "bare".to_owned(),
    };
    let group = ProcessGroup::new(&store, rank, size, &options)?;
    // It is served until the process ends.
    std::mem::forget(store);
    Ok(group)
}
