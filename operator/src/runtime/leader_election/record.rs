//! The contents of a Lease, and what an operator does about them. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::LeaseTiming;

/// A Lease as the operator last saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub lease: Lease,
    /// Since when the Lease has been the same, by this operator's clock.
    pub since: Duration,
}

impl Seen {
    /// The state after another read of the Lease.
    #[must_use]
    pub fn observe(before: Option<Self>, lease: Lease, now: Duration) -> Self {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        match before {
            Some(before) if version(&before.lease) == version(&lease) => before,
            Some(_) | None => Self { lease, since: now },
        }
    }
}

/// What an operator does about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The Lease is this operator's: it renews it.
    Renew,
    /// No operator holds the Lease: this one takes it.
    Take,
    /// Another operator holds the Lease.
    Wait,
}

/// Decides what the operator `identity` does about a Lease.
#[must_use]
pub fn decide(identity: &str, seen: &Seen, now: Duration, timing: LeaseTiming) -> Decision {
    let spec = seen.lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    if holder == identity {
        return Decision::Renew;
    }
    // The holder may be an operator with another timing.
    let theirs = spec.lease_duration_seconds;
    let theirs = theirs.and_then(|seconds| u64::try_from(seconds).ok());
    let duration = theirs
        .map_or(timing.duration, Duration::from_secs)
        .max(timing.duration);
    if holder.is_empty() || now.saturating_sub(seen.since) >= duration {
        return Decision::Take;
    }
    Decision::Wait
}

/// Whether `identity` holds the Lease.
#[must_use]
pub fn is_held_by(lease: &Lease, identity: &str) -> bool {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()) == Some(identity)
}

/// The Lease after `identity` took or renewed it.
#[must_use]
pub fn claimed(lease: &Lease, identity: &str, timing: LeaseTiming) -> Lease {
    let before = lease.spec.clone().unwrap_or_default();
    let now = Some(MicroTime(Timestamp::now()));
    let is_new = before.holder_identity.as_deref() != Some(identity);
    let changes = before.lease_transitions.unwrap_or(0);
    Lease {
        metadata: lease.metadata.clone(),
        spec: Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: i32::try_from(timing.duration.as_secs()).ok(),
            acquire_time: if is_new {
                now.clone()
            } else {
                before.acquire_time
            },
            renew_time: now,
            lease_transitions: Some(changes + i32::from(is_new)),
            ..LeaseSpec::default()
        }),
    }
}

/// The Lease without a holder: another operator may take it at once.
#[must_use]
pub fn released(lease: &Lease) -> Lease {
    let spec = lease.spec.clone().unwrap_or_default();
    Lease {
        metadata: lease.metadata.clone(),
        spec: Some(LeaseSpec {
            holder_identity: None,
            ..spec
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TIMING: LeaseTiming = LeaseTiming {
        duration: Duration::from_secs(15),
        renew_within: Duration::from_secs(10),
        period: Duration::from_secs(2),
    };

    fn lease(version: &str, holder: Option<&str>, seconds: i32) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "roundhouse", "resourceVersion": version},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 3},
        }))
        .unwrap()
    }

    fn after(lease: Lease, seconds: u64) -> Decision {
        let since = Duration::from_secs(100);
        let seen = Seen { lease, since };
        decide("a", &seen, since + Duration::from_secs(seconds), TIMING)
    }

    #[test]
    fn lease_is_taken_after_the_longer_of_both_durations() {
        assert_eq!(after(lease("1", Some("a"), 15), 0), Decision::Renew);
        assert_eq!(after(lease("1", None, 15), 0), Decision::Take);
        assert_eq!(after(lease("1", Some("b"), 15), 14), Decision::Wait);
        assert_eq!(after(lease("1", Some("b"), 15), 15), Decision::Take);
        assert_eq!(after(lease("1", Some("b"), 60), 59), Decision::Wait);
        assert_eq!(after(lease("1", Some("b"), 1), 14), Decision::Wait);
    }

    #[test]
    fn each_observed_renewal_restarts_the_wait() {
        let seconds = Duration::from_secs;
        let first = Seen::observe(None, lease("1", Some("b"), 15), seconds(100));
        let same = Seen::observe(Some(first), lease("1", Some("b"), 15), seconds(110));
        assert_eq!(same.since, seconds(100));
        let renewed = Seen::observe(Some(same), lease("2", Some("b"), 15), seconds(112));
        assert_eq!(renewed.since, seconds(112));
    }

    #[test]
    fn lease_transitions_count_new_holders_not_renewals() {
        let taken = claimed(&lease("1", Some("b"), 15), "a", TIMING);
        let spec = taken.spec.clone().unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!(spec.lease_transitions, Some(4));
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("1"));
        let renewed = claimed(&taken, "a", TIMING).spec.unwrap();
        assert_eq!(renewed.lease_transitions, Some(4));
        assert_eq!(renewed.acquire_time, spec.acquire_time);
        assert_eq!(released(&taken).spec.unwrap().holder_identity, None);
    }
}
