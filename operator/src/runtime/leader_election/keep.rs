//! Takes the Lease and renews it while the operator runs.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, ObjectMeta};
use tokio::time::{sleep, timeout};

use super::record::{Decision, Seen, claimed, decide, is_held_by, released};
use super::{Leadership, LeaseTiming, now};
use crate::runtime::api::calls::post_params;
use crate::settings::Settings;

/// An operator that competes for a Lease.
#[derive(Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    /// Unique for each start of the process: after a restart it must not mistake the Lease of the
    /// earlier process for its own.
    identity: String,
    timing: LeaseTiming,
    pub leadership: Arc<Leadership>,
}

impl Candidate {
    /// A candidate for the Lease `name`. Its client is not fenced.
    #[must_use]
    pub fn of(client: &Client, settings: &Settings, name: String) -> Self {
        let namespace = settings.lease_namespace.as_deref();
        let namespace = namespace.unwrap_or_else(|| client.default_namespace());
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".to_owned());
        let started = Timestamp::now().as_nanosecond();
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            name,
            identity: format!("{host}_{started:x}"),
            timing: settings.lease_timing,
            leadership: Arc::new(Leadership::among_others()),
        }
    }

    /// Takes the Lease when possible, and renews it. It never returns: after the leadership is
    /// lost, it waits for the end of the operator.
    pub async fn keep(self) {
        let mut seen = None;
        let mut is_logged = false;
        loop {
            // This leaves time for another try before the Lease is lost.
            let patience = self.timing.renew_within / 3;
            let checked = timeout(patience, self.check(&mut seen)).await;
            let (next, problem) = match checked {
                Ok(Ok(next)) => (Some(next), None),
                Ok(Err(error)) => (None, Some(error.to_string())),
                Err(_) => (None, Some("no answer".to_owned())),
            };
            if let Some(problem) = problem.as_ref().filter(|_| !is_logged) {
                tracing::warn!(lease = self.name, problem, "cannot take or renew the lease");
            }
            is_logged = problem.is_some();
            // A lost Lease is never taken again: the operator restarts.
            let is_lost = next == Some(Decision::Wait) || !self.leadership.may_write();
            if self.leadership.leads() && is_lost {
                self.leadership.end();
                return std::future::pending().await;
            }
            sleep(self.timing.period).await;
        }
    }

    /// Reads the Lease, and takes or renews it if that is due.
    async fn check(&self, seen: &mut Option<Seen>) -> Result<Decision, kube::Error> {
        // The holder need not read the Lease: it wrote it last, or the API server refuses the
        // renewal.
        let own = seen
            .as_ref()
            .filter(|own| is_held_by(&own.lease, &self.identity));
        let fresh = if let Some(own) = own {
            own.clone()
        } else {
            let lease = match self.leases.get_opt(&self.name).await? {
                Some(lease) => lease,
                None => self.create().await?,
            };
            Seen::observe(seen.take(), lease, now())
        };
        let next = decide(&self.identity, &fresh, now(), self.timing);
        let lease = fresh.lease.clone();
        // A renewal that fails is followed by a read.
        *seen = (next != Decision::Renew).then_some(fresh);
        if next == Decision::Wait {
            return Ok(next);
        }
        let begun = now();
        let renewed = claimed(&lease, &self.identity, self.timing);
        let parameters = post_params();
        let written = self.leases.replace(&self.name, &parameters, &renewed);
        match written.await {
            Ok(lease) => {
                *seen = Some(Seen {
                    lease,
                    since: begun,
                });
                if next == Decision::Take {
                    tracing::info!(
                        lease = self.name,
                        identity = self.identity,
                        "this operator leads"
                    );
                }
                self.leadership.renewed(begun, self.timing);
                Ok(next)
            }
            // Another operator was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(next),
            Err(error) => Err(error),
        }
    }

    async fn create(&self) -> Result<Lease, kube::Error> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        match self.leases.create(&post_params(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.leases.get(&self.name).await
            }
            created => created,
        }
    }

    /// Gives the Lease back, so that another operator need not wait. It is tried once: if it fails,
    /// the others wait.
    pub async fn release(self) {
        // A reconcile that was stopped may be about to write.
        self.leadership.end();
        let given = async {
            let lease = self.leases.get(&self.name).await?;
            if is_held_by(&lease, &self.identity) {
                let free = released(&lease);
                let parameters = post_params();
                self.leases.replace(&self.name, &parameters, &free).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(self.timing.period, given).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot release the lease; the next leader waits until it expires")
            }
            Err(_) => tracing::warn!(
                "cannot release the lease: no answer; the next leader waits until it expires"
            ),
        }
    }
}
