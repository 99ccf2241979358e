//! Prepares a process for the lobby from its launch and configuration: everything that needs no
//! peer.

use roundhouse_c10d::Numerics;
use roundhouse_contract::TrainerConfig;
use roundhouse_contract::trainer::{ConfigInvalid, Precision};
use roundhouse_elastic::data_schedule::Length;
use roundhouse_elastic::ledger::Head;
use roundhouse_elastic::{Chain, DataSchedule, RateSchedule, Scaling};
use roundhouse_member::launch;
use roundhouse_member::lobby::{self, Peers};
use roundhouse_member::member::Control;
use roundhouse_member::membership::MembershipWatch;
use roundhouse_member::signals::LeaveRequest;
use roundhouse_member::{Checkpointing, Launch, LocalState, Member, State};
use roundhouse_report::{Reporter, Work, say, say_error};
use tch::Device;

use super::identity::identity_of;
use super::{LastStep, Plan, Trained, Trainer, host_syncs};
use crate::config;
use crate::device;
use crate::failure::Failure;
use crate::gradients;
use crate::job::{Build, Job, Setup};
use crate::peak;
use crate::rendezvous::{C10d, StoreRendezvous};
use crate::replica::Replica;
use crate::source::{ChannelsLast, Source};
use crate::state::Tensors;
use crate::sync::{self, Commit};
use crate::tracing::Tracer;

mod sharding;

use sharding::{divide, network, replica_of, update_of};

impl<'reporter> Trainer<'reporter> {
    /// Loads the configuration, the data and the model, without contact to peers.
    ///
    /// # Errors
    /// The configuration or the data are invalid, or the rendezvous port is in use.
    pub fn prepare(
        launch: Launch,
        build: impl Build,
        leave: LeaveRequest,
        reporter: &'reporter mut Reporter,
    ) -> Result<Self, Failure> {
        let (machine, watch) = lobby::enter(&launch)?;
        let config = config::of(&launch)?;
        let best = launch.checkpoint.as_ref().and_then(|it| it.best);
        refuse_metric(best.and_then(|best| best.refusal(config.model.name)))?;
        if config.slices.is_some() {
            fix_num_threads();
        }
        let device = device::own(launch.local_rank, launch.expected_device)?;
        device::enter(device)?;
        numerics_of(&config).apply()?;
        let job = job_on(device, &config, &launch, build)?;
        if best.is_some() && job.test.is_none() {
            say_error("no checkpoint is kept as the best one: there is no data for an evaluation");
        }
        let Job {
            mut task,
            train,
            test,
            blocks,
            update,
        } = job;
        let replica = replica_of(&config, &launch, device, &leave)?;
        divide(task.parameters_mut(), &config, replica.as_ref(), device)?;
        let update = update_of(task.parameters_mut(), replica.as_ref(), update)?;
        let tensors = Tensors::of(task.parameters(), update.as_ref())?;

        let data_schedule = data_schedule_of(&config, train.num_samples());
        let scaling = Scaling::new(config.scale_batch, &data_schedule);
        let rates = RateSchedule::new(
            &config.schedule,
            config.optimizer.learning_rate,
            &data_schedule,
        );

        let identity = identity_of(&config, &data_schedule, blocks);
        let ledger = identity.ledger;
        let mut local_state = LocalState::fresh(scaling.start(), Chain::from(Head::start(&ledger)));
        let checkpointing = Checkpointing::prepare(&launch, identity, tensors.table()?, reporter)?;
        if let Some(manifest) = checkpointing.as_ref().and_then(Checkpointing::found) {
            local_state.stand_for(manifest);
        }
        let network = network(device, task.parameters());
        let peers = watch
            .map(|watch| meet_peers(&launch, network, watch, &leave, replica.as_ref()))
            .transpose()?;
        if config.tensorboard {
            write_events(&launch, reporter);
        }
        reporter.describe(
            Work {
                tokens_per_sample: train.tokens_per_sample(),
                flops_per_sample: task.flops_per_sample(),
                peak_flops: peak::peak_flops(&config, device),
            },
            Some(Box::new(device::Memory(device))),
        );
        let total_steps =
            local_state.position.step + data_schedule.steps_to_come(&local_state.position);
        reporter.set_total_steps(total_steps);
        if let Some(words) = config.ddp.ends_before_compression(total_steps) {
            say_error(&words);
        }
        let data = describe(train.as_ref(), test.as_deref());
        let mut work = Trained {
            config,
            task,
            train,
            test,
            update,
            tensors,
        };
        let plan = Plan {
            data_schedule,
            rates,
            scaling,
            identity: ledger,
        };
        let layout = peers.as_ref().map(|_| layout(&mut work, &plan));
        let layout = layout.transpose()?.flatten();
        let control = Control {
            machine,
            peers,
            leave,
        };
        let tracer = Tracer::new(launch.run_dir.as_deref(), launch.local_rank, device);
        Ok(Self {
            launch,
            work,
            plan,
            member: Member::prepared(control, local_state, checkpointing, reporter),
            sync: None,
            layout,
            last_step: LastStep::default(),
            longest_evaluation: None,
            commit: commit_on(device, replica.as_ref()),
            replica,
            pending: None,
            uncounted_updates: 0,
            tracer,
            data: Some(data),
            host_syncs: host_syncs::from_environment()?,
        })
    }
}

/// Builds the job, in the memory format that the configuration selects. Moves it to its device,
/// unless [`divide`] does so later.
fn job_on(
    device: Device,
    config: &TrainerConfig,
    launch: &Launch,
    build: impl Build,
) -> Result<Job, Failure> {
    let data_dir = &launch.data_dir;
    let setup = Setup {
        config,
        data_dir,
        device,
    };
    let mut job = build(&setup)?;
    if !config.parallel.divides_weights() {
        job.task.parameters_mut().move_to(device)?;
    }
    if config.channels_last {
        let last = |mut source: Box<dyn Source>| -> Box<dyn Source> {
            source.lay_channels_last();
            Box::new(ChannelsLast(source))
        };
        job.task.parameters_mut().lay_channels_last()?;
        job.train = last(job.train);
        job.test = job.test.map(last);
    }
    Ok(job)
}

/// Who decides that a step is committed.
fn commit_on(device: Device, replica: Option<&Replica>) -> Commit {
    match replica {
        // The processes of a replica agree on the host.
        Some(_) => Commit::Host,
        None => device::commit(device),
    }
}

/// Describes the data in one line.
fn describe(train: &dyn Source, test: Option<&dyn Source>) -> String {
    let test = test.map_or_else(
        || "no data for evaluations".to_owned(),
        |test| format!("val: {}", test.describe()),
    );
    format!("train: {}; {test}", train.describe())
}

fn numerics_of(config: &TrainerConfig) -> Numerics {
    Numerics {
        tf32: config.precision == Precision::Tf32,
        cudnn_benchmark: config.has_cudnn_benchmark(),
        deterministic: config.deterministic,
    }
}

fn write_events(launch: &Launch, reporter: &mut Reporter) {
    match &launch.checkpoint {
        Some(checkpoint) => reporter.write_events(checkpoint.dir.join("tensorboard")),
        None => say_error(
            "no event files are written: trainer.tensorboard needs a directory for checkpoints",
        ),
    }
}

/// Computes the packing of gradients. It is the same in all processes of a training and does not
/// depend on their state. `None`: neither slices nor divided gradients are packed.
fn layout(work: &mut Trained, plan: &Plan) -> Result<Option<Vec<Vec<usize>>>, Failure> {
    if work.config.slices.is_some() || work.task.parameters().sharing().is_some() {
        return Ok(None);
    }
    let (options, order) = (
        sync::reducer_options(&work.config, 0),
        plan.identity.order(0),
    );
    let first = plan.data_schedule.batch_at(&plan.scaling.start());
    let first = first.ok_or_else(|| Failure::internal("the training has no step"))?;
    gradients::layout(&mut work.inputs(&first, &order), &options).map(Some)
}

fn meet_peers(
    launch: &Launch,
    network: C10d,
    watch: MembershipWatch,
    leave: &LeaveRequest,
    replica: Option<&Replica>,
) -> Result<Peers<StoreRendezvous>, Failure> {
    let launch::Source::Membership {
        file,
        own_address,
        rendezvous_port,
    } = &launch.source
    else {
        return Err(Failure::internal("a process alone has no peers"));
    };
    let rendezvous = StoreRendezvous::open(
        network,
        *own_address,
        *rendezvous_port,
        launch.local_rank,
        launch.timeouts,
    )?;
    let peers = Peers::meet(file, watch, rendezvous, leave)?;
    if let Some(replica) = replica {
        replica.guard(&peers.interrupter);
    }
    Ok(peers)
}

/// Fails if the model's evaluation lacks the metric of `checkpoint.best`. `refusal` is the reason.
fn refuse_metric(refusal: Option<impl std::fmt::Display>) -> Result<(), ConfigInvalid> {
    refusal.map_or(Ok(()), |refusal| {
        Err(ConfigInvalid {
            field: "model.name",
            message: format!("with checkpoint.best, {refusal}"),
        })
    })
}

/// Sets the number of threads to 1. Kernels may split sums by the number of threads, which must not
/// depend on the number of processes per machine.
fn fix_num_threads() {
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        tch::set_num_threads(1);
        say("slices: this process computes with one thread; set OMP_NUM_THREADS to change it");
    }
}

fn data_schedule_of(config: &TrainerConfig, num_samples: u64) -> DataSchedule {
    let global_batch = u64::from(config.global_batch_size);
    let length = match (config.steps, config.epochs) {
        (Some(steps), _) => Length::Steps(steps),
        (None, epochs) => Length::Epochs(u64::from(epochs.unwrap_or(1))),
    };
    let growth = config.schedule.batch_growth.as_ref();
    DataSchedule::new(num_samples, global_batch, length, growth)
}
