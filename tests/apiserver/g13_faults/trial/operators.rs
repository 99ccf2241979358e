//! The operators of a trial: how one may exit, and its successor.

use std::mem::replace;
use std::time::Duration;

use kube::Config;
use roundhouse_operator::run::RunError;
use roundhouse_operator::runtime::leader_election::LeaseTiming;
use roundhouse_tests::cluster::until;
use tokio::time::sleep;

use super::Trial;
use crate::environment::{Environment, Operator, TIMEOUT};
use crate::g13_faults::fault::Fault;
use crate::g13_faults::injection::Injection;

/// Short times that a busy machine can still keep. The time between the last write and the expiry
/// of the Lease is that of the default.
const TERMS: LeaseTiming = LeaseTiming {
    duration: Duration::from_secs(11),
    renew_within: Duration::from_secs(6),
    period: Duration::from_millis(400),
};

/// How the operator of a trial may exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// It runs until the end of the trial.
    Lasts,
    /// It crashes after a write and has no successor yet.
    Dies,
    /// It exits if it loses its Lease.
    MayLoseLease,
}

/// Starts an operator, with leader election if it needs a Lease.
pub(super) fn operator(
    env: &Environment,
    config: Config,
    namespace: &str,
    needs_lease: bool,
) -> Operator {
    if needs_lease {
        env.candidate_of_namespace(config, namespace, TERMS)
    } else {
        env.operator_of_namespace(config, namespace)
    }
}

impl Trial<'_> {
    /// Allows that the operator loses its Lease.
    pub(crate) fn may_lose_lease(&mut self) {
        self.lifetime = Lifetime::MayLoseLease;
    }

    /// Starts the fault. An older cache has a resource version of `first` or later; with every
    /// second seed a new operator reads it.
    pub(super) async fn inject(&mut self, fault: Fault, seed: u64, first: u64) {
        self.lifetime = match fault {
            Fault::Dies => Lifetime::Dies,
            Fault::Unrenewed => Lifetime::MayLoseLease,
            _ => self.lifetime,
        };
        if fault == Fault::Dies {
            self.operator.cut_off_after(u32::try_from(seed).unwrap());
            return;
        }
        if fault == Fault::Unrenewed {
            // The operator can only lose a Lease that it holds.
            let leads = || async { Ok(self.operator.is_leader().then_some(())) };
            until("the operator leads", TIMEOUT, leads).await.unwrap();
        }
        let all: &[_] = &["pods", "trainingjobs", "services", "networkpolicies"];
        let is_new = fault == Fault::Older && !seed.is_multiple_of(2);
        let read = match seed / 2 % 3 {
            1 if is_new => &all[..1],
            2 if is_new => &all[1..2],
            _ => all,
        };
        // Before the job exists there is no older state of it.
        let has_past = self.history.has_any();
        let older = has_past.then(|| self.history.older(first, seed, read));
        let injection = Injection::new(fault, seed, older.unwrap_or(first));
        if is_new {
            self.operator.kill().await;
            self.proxy.traffic.begin(injection.for_new_operator(read));
            self.operator = self.next_operator();
        } else {
            self.proxy.traffic.begin(injection);
        }
        if fault == Fault::Unrenewed {
            // The next step happens before the operator exits, during the exit, or without a
            // leader.
            let longest = TERMS.duration + TERMS.period;
            sleep(longest.mul_f64(fastrand::Rng::with_seed(seed).f64())).await;
        }
    }

    fn next_operator(&self) -> Operator {
        let config = self.proxy.config();
        operator(self.env, config, &self.namespace, self.needs_lease)
    }

    /// Starts a successor if the operator has crashed or exited.
    pub(super) async fn replace_exited(&mut self) {
        if self.lifetime == Lifetime::Dies && self.operator.is_cut_off() {
            self.operator.kill().await;
            self.operator = self.next_operator();
            self.lifetime = Lifetime::Lasts;
            self.crashes += 1;
        } else if self.operator.has_exited() {
            let next = self.next_operator();
            let why = replace(&mut self.operator, next).wait_for_exit().await;
            let may_lose = self.lifetime == Lifetime::MayLoseLease;
            match why {
                Err(RunError::LeaseLost(_)) if may_lose => self.losses += 1,
                why => self
                    .problems
                    .push(format!("the operator has exited: {why:?}")),
            }
        }
    }
}
