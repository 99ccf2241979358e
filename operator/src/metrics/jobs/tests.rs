use jiff::SignedDuration;
use roundhouse_contract::{Progress, Repeat, RepeatSource};
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, world};

use super::*;
use crate::metrics::testing::{ManualClock, value};

/// A job whose plans are reported to the metrics, as a reconcile does it. Each worker has one GPU.
struct Fixture {
    world: World,
    jobs: Jobs,
    registry: Registry,
    clock: ManualClock,
}

fn key() -> JobKey {
    JobKey::new("ml", "job-uid")
}

/// The job as the watch reports it.
fn watched() -> JobIdentity {
    let JobKey { namespace, uid } = key();
    let name = "digits".to_owned();
    JobIdentity {
        namespace,
        name,
        uid,
    }
}

/// One job of two workers, which the watch has reported.
fn fixture() -> Fixture {
    let fixture = Fixture {
        world: world(2),
        ..restarted(world(2), ManualClock::new())
    };
    fixture.jobs.apply(&Event::Apply(watched()));
    fixture
}

/// The same cluster with a new operator.
fn restarted(world: World, clock: ManualClock) -> Fixture {
    let registry = Registry::new();
    let jobs = Jobs::new(&registry, clock.clock()).unwrap();
    Fixture {
        world,
        jobs,
        registry,
        clock,
    }
}

impl Fixture {
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
        panic!("the plans never settle");
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
    let mut fixture = fixture();
    fixture.settle();
    fixture.world.is_on(0, "n1");
    fixture.world.is_on(1, "n1");
    fixture.settle();
    fixture.pass(30);
    assert_eq!(fixture.seconds(), (60.0, 0.0), "both pull their images");
    fixture.prepare();
    fixture.settle();
    fixture.pass(100);
    assert_eq!(fixture.seconds(), (260.0, 200.0));
    fixture.world.ends(0, 74, 3);
    fixture.settle();
    fixture.pass(10);
    fixture.world.restarts(0);
    fixture.world.prepared(0);
    fixture.settle();
    assert_eq!(fixture.seconds(), (280.0, 200.0), "one recovers, one waits");
    fixture.pass(5);
    assert_eq!(fixture.seconds(), (290.0, 210.0));
    assert_eq!(fixture.of_job("roundhouse_job_gpus", ""), Some(2.0));
}

#[test]
fn restarted_operator_counts_gpu_seconds_from_zero() {
    let mut fixture = fixture();
    fixture.settle();
    fixture.prepare();
    fixture.settle();
    fixture.pass(50);
    assert_eq!(fixture.seconds(), (100.0, 100.0));
    let mut next = restarted(fixture.world, fixture.clock);
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
    let mut fixture = fixture();
    fixture.settle();
    fixture.pass(20);
    fixture.prepare();
    fixture.settle();
    let sum = |fixture: &Fixture, what: &str| {
        let of = |suffix| fixture.value(&format!("roundhouse_job_{what}_seconds_{suffix}"));
        (of("count").unwrap(), of("sum").unwrap())
    };
    assert_eq!(sum(&fixture, "time_to_ready"), (1.0, 20.0));
    assert_eq!(sum(&fixture, "start"), (1.0, 20.0));
    fixture.pass(60);
    fixture.world.ends(1, 74, 9);
    fixture.settle();
    fixture.pass(4);
    fixture.world.restarts(1);
    fixture.world.prepared(1);
    fixture.settle();
    fixture.settle();
    assert_eq!(sum(&fixture, "recover"), (1.0, 4.0));
    assert_eq!(sum(&fixture, "start"), (1.0, 20.0));
    // A generation that forms because the job grows is no recovery.
    fixture.world.job.replicas = 3;
    fixture.settle();
    fixture.world.prepared(2);
    fixture.settle();
    assert_eq!(
        fixture.of_job("roundhouse_job_workers", "state=active"),
        Some(3.0)
    );
    assert_eq!(sum(&fixture, "recover"), (1.0, 4.0));
}

#[test]
fn recovery_across_operator_restart_counts_from_the_failure() {
    let mut fixture = fixture();
    fixture.settle();
    fixture.prepare();
    fixture.settle();
    fixture.pass(60);
    fixture.world.ends(1, 74, 9);
    fixture.settle();
    let mut next = restarted(fixture.world, fixture.clock);
    next.jobs.apply(&Event::Apply(watched()));
    next.pass(12);
    next.world.restarts(1);
    next.world.prepared(1);
    next.settle();
    let sum = next.value("roundhouse_job_recover_seconds_sum");
    assert_eq!(sum, Some(12.0));
    let incidents = next.of_job("roundhouse_job_incidents_total", "reason=VolumeFailed");
    assert_eq!(incidents, None, "the earlier operator has counted it");
}

#[test]
fn incidents_count_by_reason_and_avoided_nodes_by_name() {
    let mut fixture = fixture();
    fixture.settle();
    fixture.prepare();
    fixture.settle();
    fixture.world.ends(1, 77, 9);
    fixture.settle();
    let incidents = |reason: &str| {
        let label = format!("reason={reason}");
        fixture.of_job("roundhouse_job_incidents_total", &label)
    };
    assert_eq!(incidents("HardwareFault"), Some(1.0));
    assert_eq!(incidents("Crashed"), None);
    let avoided = fixture.of_job("roundhouse_job_node_avoided_total", "node=n1");
    assert_eq!(avoided, Some(1.0));
}

#[test]
fn each_job_is_in_one_state_and_its_workers_are_counted() {
    let mut fixture = fixture();
    fixture.settle();
    assert_eq!(fixture.in_state("WaitingForWorkers"), Some(1.0));
    assert_eq!(
        fixture.of_job("roundhouse_job_workers", "state=wanted"),
        Some(2.0)
    );
    assert_eq!(
        fixture.of_job("roundhouse_job_workers", "state=ready"),
        Some(0.0)
    );
    fixture.prepare();
    fixture.settle();
    assert_eq!(fixture.in_state("WaitingForWorkers"), None);
    assert_eq!(fixture.in_state("Training"), Some(1.0));
    assert_eq!(
        fixture.of_job("roundhouse_job_workers", "state=active"),
        Some(2.0)
    );
}

#[test]
fn ended_job_loses_its_series_and_keeps_its_state() {
    let mut fixture = fixture();
    fixture.settle();
    fixture.prepare();
    fixture.settle();
    fixture.pass(10);
    fixture.world.ends(0, 0, 9);
    fixture.world.ends(1, 0, 9);
    fixture.settle();
    fixture.pass(60);
    assert_eq!(fixture.in_state("Completed"), Some(1.0));
    assert_eq!(
        fixture.of_job("roundhouse_job_workers", "state=wanted"),
        None
    );
    assert_eq!(fixture.seconds(), (20.0, 20.0));
    fixture.pass(3_600);
    assert_eq!(fixture.of_job("roundhouse_job_gpus", ""), None);
    assert_eq!(fixture.in_state("Completed"), Some(1.0));
    // An operator that started after the end of the job exposes only the job's state.
    let mut next = restarted(fixture.world, fixture.clock);
    next.jobs.apply(&Event::Apply(watched()));
    next.settle();
    assert_eq!(next.in_state("Completed"), Some(1.0));
    assert_eq!(next.of_job("roundhouse_job_gpus", ""), None);
}

#[test]
fn late_reconcile_does_not_restore_series_of_deleted_job() {
    let mut fixture = fixture();
    fixture.settle();
    assert_eq!(fixture.of_job("roundhouse_job_gpus", ""), Some(0.0));
    fixture.jobs.apply(&Event::Delete(watched()));
    fixture.settle();
    assert_eq!(fixture.of_job("roundhouse_job_gpus", ""), None);
    assert_eq!(fixture.in_state("WaitingForWorkers"), None);
    fixture.jobs.apply(&Event::Apply(watched()));
    fixture.settle();
    assert_eq!(fixture.of_job("roundhouse_job_gpus", ""), Some(0.0));
    // A watch that broke lists the jobs again, and this job is missing.
    fixture.jobs.apply(&Event::Init);
    fixture.jobs.apply(&Event::InitDone);
    assert_eq!(fixture.of_job("roundhouse_job_gpus", ""), None);
}

#[test]
fn repeated_steps_count_once_however_often_reported() {
    let mut fixture = fixture();
    fixture.settle();
    fixture.prepare();
    fixture.settle();
    let repeated = |fixture: &Fixture| fixture.of_job("roundhouse_job_repeated_steps_total", "");
    assert_eq!(repeated(&fixture), Some(0.0));
    for (step, repeated_steps, expected) in
        [(40, 0, 0.0), (45, 12, 12.0), (50, 12, 12.0), (60, 15, 15.0)]
    {
        fixture.pass(10);
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
        let at = fixture.world.now;
        fixture.world.observed.progress = Some(ProgressSample { progress, at });
        fixture.settle();
        assert_eq!(repeated(&fixture), Some(expected));
    }
    let mut next = restarted(fixture.world, fixture.clock);
    next.jobs.apply(&Event::Apply(watched()));
    next.settle();
    assert_eq!(
        repeated(&next),
        Some(0.0),
        "the earlier operator has counted them"
    );
}
