use jiff::SignedDuration;
use roundhouse_contract::{Progress, Repeat, RepeatSource};
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, world};

use super::*;
use crate::metrics::testing::{ManualClock, value};

/// A world whose plans are told to metrics, as a reconcile does it. Each worker has one GPU.
struct Told {
    world: World,
    jobs: Jobs,
    registry: Registry,
    clock: ManualClock,
}

fn key() -> JobKey {
    JobKey::new("ml", "job-uid")
}

/// The job of a world, as the watch tells of it.
fn watched() -> JobIdentity {
    let JobKey { namespace, uid } = key();
    let name = "digits".to_owned();
    JobIdentity {
        namespace,
        name,
        uid,
    }
}

/// One job of two workers. `labels`: of its series.
fn told() -> Told {
    let told = Told {
        world: world(2),
        ..restarted(world(2), ManualClock::new())
    };
    told.jobs.apply(&Event::Apply(watched()));
    told
}

/// The same cluster, and a new operator.
fn restarted(world: World, clock: ManualClock) -> Told {
    let registry = Registry::new();
    let jobs = Jobs::new(&registry, clock.clock()).unwrap();
    Told {
        world,
        jobs,
        registry,
        clock,
    }
}

impl Told {
    /// Reconciles until nothing changes.
    fn settle(&mut self) {
        for _ in 0..20 {
            let before = self.world.observed.status.clone();
            let plan = self.world.plan();
            let gpus = Gpus::of(&self.world.observed.pods, &plan.status, 1);
            self.jobs.see(&key(), &plan.status, gpus);
            self.jobs.show(&key(), &plan.status);
            if plan.actions.is_empty() && plan.status == before {
                return;
            }
            self.world.carry_out(&plan, usize::MAX);
            let after = &self.world.observed.status;
            self.jobs.stored(&key(), &before, after, self.world.now);
        }
        panic!("the plans never come to rest");
    }

    fn pass(&mut self, seconds: u64) {
        self.clock.advance(seconds);
        self.world.now += SignedDuration::from_secs(i64::try_from(seconds).unwrap());
    }

    /// Both workers are scheduled and prepared.
    fn prepare(&mut self) {
        for at in 0..2 {
            self.world.is_on(at, "n1");
            self.world.prepared(at);
        }
    }

    fn of_job(&self, name: &str, label: &str) -> Option<f64> {
        let label = label.split_once('=');
        let mut labels = vec!["job=\"digits\"".to_owned(), "namespace=\"ml\"".to_owned()];
        labels.extend(label.map(|(key, value)| format!("{key}=\"{value}\"")));
        labels.sort();
        value(&self.registry, &format!("{name}{{{}}}", labels.join(",")))
    }

    fn seconds(&self) -> (f64, f64) {
        let of = |kind| self.of_job(&format!("roundhouse_job_gpu_{kind}_seconds_total"), "");
        (of("held").unwrap(), of("training").unwrap())
    }

    fn in_state(&self, state: &str) -> Option<f64> {
        let series = format!("roundhouse_jobs{{namespace=\"ml\",state=\"{state}\"}}");
        value(&self.registry, &series)
    }

    fn value(&self, series: &str) -> Option<f64> {
        value(&self.registry, series)
    }
}

#[test]
fn goodput_is_the_share_of_held_gpu_seconds_that_train() {
    let mut told = told();
    told.settle();
    told.world.is_on(0, "n1");
    told.world.is_on(1, "n1");
    told.settle();
    told.pass(30);
    assert_eq!(told.seconds(), (60.0, 0.0), "both pull their images");
    told.prepare();
    told.settle();
    told.pass(100);
    assert_eq!(told.seconds(), (260.0, 200.0));
    told.world.ends(0, 74, 3);
    told.settle();
    told.pass(10);
    told.world.restarts(0);
    told.world.prepared(0);
    told.settle();
    assert_eq!(told.seconds(), (280.0, 200.0), "one recovers, one waits");
    told.pass(5);
    assert_eq!(told.seconds(), (290.0, 210.0));
    assert_eq!(told.of_job("roundhouse_job_gpus", ""), Some(2.0));
}

#[test]
fn restarted_operator_counts_gpu_seconds_from_zero() {
    let mut told = told();
    told.settle();
    told.prepare();
    told.settle();
    told.pass(50);
    assert_eq!(told.seconds(), (100.0, 100.0));
    let mut next = restarted(told.world, told.clock);
    next.jobs.apply(&Event::Init);
    next.jobs.apply(&Event::InitApply(watched()));
    next.jobs.apply(&Event::InitDone);
    next.settle();
    assert_eq!(next.seconds(), (0.0, 0.0));
    next.pass(7);
    next.settle();
    assert_eq!(next.seconds(), (14.0, 14.0));
    assert_eq!(next.value("roundhouse_job_start_seconds_count"), Some(0.0));
}

#[test]
fn milestones_count_once_in_seconds_since_acceptance() {
    let mut told = told();
    told.settle();
    told.pass(20);
    told.prepare();
    told.settle();
    let sum = |told: &Told, what: &str| {
        let of = |suffix| told.value(&format!("roundhouse_job_{what}_seconds_{suffix}"));
        (of("count").unwrap(), of("sum").unwrap())
    };
    assert_eq!(sum(&told, "time_to_ready"), (1.0, 20.0));
    assert_eq!(sum(&told, "start"), (1.0, 20.0));
    told.pass(60);
    told.world.ends(1, 74, 9);
    told.settle();
    told.pass(4);
    told.world.restarts(1);
    told.world.prepared(1);
    told.settle();
    told.settle();
    assert_eq!(sum(&told, "recover"), (1.0, 4.0));
    assert_eq!(sum(&told, "start"), (1.0, 20.0));
    // Growth is a new generation, too, and no recovery.
    told.world.job.replicas = 3;
    told.settle();
    told.world.prepared(2);
    told.settle();
    assert_eq!(
        told.of_job("roundhouse_job_workers", "state=active"),
        Some(3.0)
    );
    assert_eq!(sum(&told, "recover"), (1.0, 4.0));
}

#[test]
fn recovery_across_operator_restart_counts_from_the_failure() {
    let mut told = told();
    told.settle();
    told.prepare();
    told.settle();
    told.pass(60);
    told.world.ends(1, 74, 9);
    told.settle();
    let mut next = restarted(told.world, told.clock);
    next.jobs.apply(&Event::Apply(watched()));
    next.pass(12);
    next.world.restarts(1);
    next.world.prepared(1);
    next.settle();
    let sum = next.value("roundhouse_job_recover_seconds_sum");
    assert_eq!(sum, Some(12.0));
    let incidents = next.of_job("roundhouse_job_incidents_total", "reason=VolumeFailed");
    assert_eq!(incidents, None, "the earlier one has counted it");
}

#[test]
fn incidents_count_by_reason_and_avoided_nodes_by_name() {
    let mut told = told();
    told.settle();
    told.prepare();
    told.settle();
    told.world.ends(1, 77, 9);
    told.settle();
    let incidents = |reason: &str| {
        let label = format!("reason={reason}");
        told.of_job("roundhouse_job_incidents_total", &label)
    };
    assert_eq!(incidents("HardwareFault"), Some(1.0));
    assert_eq!(incidents("Crashed"), None);
    let avoided = told.of_job("roundhouse_job_node_avoided_total", "node=n1");
    assert_eq!(avoided, Some(1.0));
}

#[test]
fn each_job_is_in_one_state_and_its_workers_are_counted() {
    let mut told = told();
    told.settle();
    assert_eq!(told.in_state("WaitingForWorkers"), Some(1.0));
    assert_eq!(
        told.of_job("roundhouse_job_workers", "state=wanted"),
        Some(2.0)
    );
    assert_eq!(
        told.of_job("roundhouse_job_workers", "state=ready"),
        Some(0.0)
    );
    told.prepare();
    told.settle();
    assert_eq!(told.in_state("WaitingForWorkers"), None);
    assert_eq!(told.in_state("Training"), Some(1.0));
    assert_eq!(
        told.of_job("roundhouse_job_workers", "state=active"),
        Some(2.0)
    );
}

#[test]
fn ended_job_loses_its_series_and_keeps_its_state() {
    let mut told = told();
    told.settle();
    told.prepare();
    told.settle();
    told.pass(10);
    told.world.ends(0, 0, 9);
    told.world.ends(1, 0, 9);
    told.settle();
    told.pass(60);
    assert_eq!(told.in_state("Completed"), Some(1.0));
    assert_eq!(told.of_job("roundhouse_job_workers", "state=wanted"), None);
    assert_eq!(told.seconds(), (20.0, 20.0));
    told.pass(3_600);
    assert_eq!(told.of_job("roundhouse_job_gpus", ""), None);
    assert_eq!(told.in_state("Completed"), Some(1.0));
    // An operator that only ever saw it ended has nothing to tell of it but its state.
    let mut next = restarted(told.world, told.clock);
    next.jobs.apply(&Event::Apply(watched()));
    next.settle();
    assert_eq!(next.in_state("Completed"), Some(1.0));
    assert_eq!(next.of_job("roundhouse_job_gpus", ""), None);
}

#[test]
fn late_reconcile_does_not_restore_series_of_deleted_job() {
    let mut told = told();
    told.settle();
    assert_eq!(told.of_job("roundhouse_job_gpus", ""), Some(0.0));
    told.jobs.apply(&Event::Delete(watched()));
    told.settle();
    assert_eq!(told.of_job("roundhouse_job_gpus", ""), None);
    assert_eq!(told.in_state("WaitingForWorkers"), None);
    told.jobs.apply(&Event::Apply(watched()));
    told.settle();
    assert_eq!(told.of_job("roundhouse_job_gpus", ""), Some(0.0));
    // A watch that broke lists the jobs again, and this one is not among them.
    told.jobs.apply(&Event::Init);
    told.jobs.apply(&Event::InitDone);
    assert_eq!(told.of_job("roundhouse_job_gpus", ""), None);
}

#[test]
fn repeated_steps_count_once_however_often_reported() {
    let mut told = told();
    told.settle();
    told.prepare();
    told.settle();
    let repeated = |told: &Told| told.of_job("roundhouse_job_repeated_steps_total", "");
    assert_eq!(repeated(&told), Some(0.0));
    for (step, repeated_steps, expected) in
        [(40, 0, 0.0), (45, 12, 12.0), (50, 12, 12.0), (60, 15, 15.0)]
    {
        told.pass(10);
        let progress = Progress {
            generation: 1,
            step,
            total_steps: 100,
            repeated_steps,
            last_repeat: (repeated_steps > 0).then_some(Repeat {
                first: 31,
                last: 42,
                after: 30,
                source: RepeatSource::Checkpoint,
                rank: None,
            }),
            ..Progress::default()
        };
        let at = told.world.now;
        told.world.observed.progress = Some(ProgressSample { progress, at });
        told.settle();
        assert_eq!(repeated(&told), Some(expected));
    }
    let mut next = restarted(told.world, told.clock);
    next.jobs.apply(&Event::Apply(watched()));
    next.settle();
    assert_eq!(
        repeated(&next),
        Some(0.0),
        "the earlier operator has counted them"
    );
}
