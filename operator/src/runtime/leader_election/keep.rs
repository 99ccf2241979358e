//! Taking the Lease and renewing it, for as long as the operator runs.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, ObjectMeta};
use tokio::time::{sleep, timeout};

use super::record::{Seen, Turn, given_back, held, is_held_by, turn};
use super::{Leadership, Terms, now};
use crate::runtime::api::calls::post_params;
use crate::settings::Settings;

/// An operator that wants a Lease.
#[derive(Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    /// Unique for each start of the process: after a restart it must not take the Lease of its earlier self for its own.
    identity: String,
    terms: Terms,
    /// Whether it has it.
    pub leadership: Arc<Leadership>,
}

impl Candidate {
    /// For the Lease `name`, with a client that is not fenced.
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
            terms: settings.lease_terms,
            leadership: Arc::new(Leadership::among_others()),
        }
    }

    /// Takes the Lease when it can be had, and renews it. Goes on for ever, also when the leadership is lost: then it only
    /// waits for the end of the operator.
    pub async fn keep(self) {
        let mut seen = None;
        let mut told = false;
        loop {
            // There is time for another try before the Lease is lost.
            let patience = self.terms.renew_within / 3;
            let looked = timeout(patience, self.look(&mut seen)).await;
            let (next, problem) = match looked {
                Ok(Ok(next)) => (Some(next), None),
                Ok(Err(error)) => (None, Some(error.to_string())),
                Err(_) => (None, Some("no answer".to_owned())),
            };
            if let Some(problem) = problem.as_ref().filter(|_| !told) {
                tracing::warn!(lease = self.name, problem, "the lease");
            }
            told = problem.is_some();
            // Once lost, it is never taken again: the operator starts anew.
            let is_lost = next == Some(Turn::Wait) || !self.leadership.may_write();
            if self.leadership.leads() && is_lost {
                self.leadership.end();
                return std::future::pending().await;
            }
            sleep(self.terms.period).await;
        }
    }

    /// One look at the Lease, and what follows from it.
    async fn look(&self, seen: &mut Option<Seen>) -> Result<Turn, kube::Error> {
        // Its holder need not read it: it wrote it last, or the API server refuses the renewal.
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
            Seen::look(seen.take(), lease, now())
        };
        let next = turn(&self.identity, &fresh, now(), self.terms);
        let lease = fresh.lease.clone();
        // A renewal that fails is followed by a look.
        *seen = (next != Turn::Renew).then_some(fresh);
        if next == Turn::Wait {
            return Ok(next);
        }
        let begun = now();
        let renewed = held(&lease, &self.identity, self.terms);
        let parameters = post_params();
        let written = self.leases.replace(&self.name, &parameters, &renewed);
        match written.await {
            Ok(lease) => {
                *seen = Some(Seen {
                    lease,
                    since: begun,
                });
                if next == Turn::Take {
                    tracing::info!(
                        lease = self.name,
                        identity = self.identity,
                        "this operator leads"
                    );
                }
                self.leadership.renewed(begun, self.terms);
                Ok(next)
            }
            // Somebody else was faster.
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

    /// Gives the Lease back, so that another operator need not wait. It is tried once: without it the others wait.
    pub async fn give_back(self) {
        // A step that was broken off may be on its way to its next write.
        self.leadership.end();
        let given = async {
            let lease = self.leases.get(&self.name).await?;
            if is_held_by(&lease, &self.identity) {
                let free = given_back(&lease);
                let parameters = post_params();
                self.leases.replace(&self.name, &parameters, &free).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(self.terms.period, given).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease is not given back"),
            Err(_) => tracing::warn!("the lease is not given back: no answer"),
        }
    }
}
