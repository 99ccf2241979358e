//! The operators of a course: what may become of one, and who comes after it.

use std::mem::replace;
use std::time::Duration;

use kube::Config;
use roundhouse_operator::run::RunError;
use roundhouse_operator::runtime::leader_election::Terms;
use roundhouse_tests::cluster::until;
use tokio::time::sleep;

use super::Course;
use crate::faults::fault::Fault;
use crate::faults::trouble::Trouble;
use crate::stage::{Operator, SOON, Stage};

/// Short, but a busy machine keeps them. Between the last write and the end of a Lease there is as much time as usual.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(11),
    renew_within: Duration::from_secs(6),
    period: Duration::from_millis(400),
};

/// What may become of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It works to the end of the course.
    Lasts,
    /// It dies after a write, and has not been replaced yet.
    Dies,
    /// It ends if it loses its Lease.
    MayLoseLease,
}

/// Starts an operator, which may need a Lease.
pub(super) fn operator(
    stage: &Stage,
    config: Config,
    namespace: &str,
    needs_lease: bool,
) -> Operator {
    if needs_lease {
        stage.candidate_of(config, namespace, TERMS)
    } else {
        stage.operator_through(config, namespace)
    }
}

impl Course<'_> {
    /// From now on the operator may lose its Lease.
    pub(crate) fn may_lose_lease(&mut self) {
        self.life = Life::MayLoseLease;
    }

    /// An older cache is as old as the namespace or younger. With every second seed it is a new operator that reads it.
    pub(super) async fn trouble(&mut self, fault: Fault, seed: u64, first: u64) {
        self.life = match fault {
            Fault::Dies => Life::Dies,
            Fault::Unrenewed => Life::MayLoseLease,
            _ => self.life,
        };
        if fault == Fault::Dies {
            self.operator.cut_off_after(u32::try_from(seed).unwrap());
            return;
        }
        if fault == Fault::Unrenewed {
            // Nobody can lose what they do not have.
            let leads = || async { Ok(self.operator.leads().then_some(())) };
            until("the operator leads", SOON, leads).await.unwrap();
        }
        let all: &[_] = &["pods", "trainingjobs", "services", "networkpolicies"];
        let is_new = fault == Fault::Older && !seed.is_multiple_of(2);
        let read = match seed / 2 % 3 {
            1 if is_new => &all[..1],
            2 if is_new => &all[1..2],
            _ => all,
        };
        // Nothing is older when the job is still to come.
        let has_past = self.history.has_any();
        let older = has_past.then(|| self.history.older(first, seed, read));
        let trouble = Trouble::new(fault, seed, older.unwrap_or(first));
        if is_new {
            self.operator.kill().await;
            self.proxy.traffic.begin(trouble.begun_anew(read));
            self.operator = self.next_operator();
        } else {
            self.proxy.traffic.begin(trouble);
        }
        if fault == Fault::Unrenewed {
            // The next step comes before the operator ends, while it ends, or while no operator leads.
            let whole = TERMS.duration + TERMS.period;
            sleep(whole.mul_f64(fastrand::Rng::with_seed(seed).f64())).await;
        }
    }

    fn next_operator(&self) -> Operator {
        let config = self.proxy.config();
        operator(self.stage, config, &self.namespace, self.needs_lease)
    }

    /// Starts the next operator if this one has died, or has ended.
    pub(super) async fn replace_dead(&mut self) {
        if self.life == Life::Dies && self.operator.is_cut_off() {
            self.operator.kill().await;
            self.operator = self.next_operator();
            self.life = Life::Lasts;
            self.deaths += 1;
        } else if self.operator.has_ended() {
            let next = self.next_operator();
            let why = replace(&mut self.operator, next).ends().await;
            let may_lose = self.life == Life::MayLoseLease;
            match why {
                Err(RunError::LeaseLost(_)) if may_lose => self.losses += 1,
                why => self.wrong.push(format!("the operator has ended: {why:?}")),
            }
        }
    }
}
