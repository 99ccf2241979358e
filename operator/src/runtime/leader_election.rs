//! Leader election: of several operators, the one that holds a Lease reconciles the jobs. The
//! others keep their caches filled, so that one of them can continue at once.
//!
//! The holder renews the Lease. Another operator takes it when it has seen no renewal for the
//! Lease's whole duration, by its own clock: clocks of different machines are never compared. The
//! holder stops writing when its last renewal is older than a part of that duration, even if its
//! process was stopped in between and does not know yet that time has passed ([`fence`]). A write
//! that it has sent by then arrives before another operator may begin, unless an admission webhook
//! delays it for longer. A late write does no harm: names of created objects are deterministic, so
//! the next operator finds them, and other writes name the version or the UID of their object, so
//! they change no other object.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

pub mod fence;
pub mod keep;
pub mod record;

/// Timing of a Lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTiming {
    /// Without a renewal for this time, another operator takes the Lease.
    pub duration: Duration,
    /// Without a renewal for this time, the holder writes nothing more.
    pub renew_within: Duration,
    /// Pause between two reads of the Lease.
    pub period: Duration,
}

impl Default for LeaseTiming {
    /// Another operator leads within 15 s after the death of the leader: the duration, a period and
    /// two calls. The time between `renew_within` and `duration` is for calls in flight
    /// ([`crate::runtime::api::calls::DEADLINE`]).
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(12),
            renew_within: Duration::from_secs(7),
            period: Duration::from_millis(1_500),
        }
    }
}

/// The role of this operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Follows,
    Leads,
    /// It has led, and does not lead any more: the operator ends.
    Lost,
}

/// Whether this operator leads, and may write.
#[derive(Debug)]
pub struct Leadership {
    role: watch::Sender<Role>,
    /// Until when the operator may write: milliseconds of [`now`].
    until: AtomicU64,
}

impl Leadership {
    /// The leadership of a single operator.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            role: watch::Sender::new(Role::Leads),
            until: AtomicU64::new(u64::MAX),
        }
    }

    /// The leadership of one of several operators.
    #[must_use]
    pub fn among_others() -> Self {
        Self {
            role: watch::Sender::new(Role::Follows),
            until: AtomicU64::new(0),
        }
    }

    /// Whether the operator may write now.
    #[must_use]
    pub fn may_write(&self) -> bool {
        milliseconds(now()) < self.until.load(Ordering::SeqCst)
    }

    /// Ends when the operator leads.
    pub async fn won(&self) {
        self.becomes(Role::Leads).await;
    }

    /// Ends when the operator does not lead any more.
    pub async fn lost(&self) {
        self.becomes(Role::Lost).await;
    }

    async fn becomes(&self, role: Role) {
        let mut seen = self.role.subscribe();
        // The sender lives as long as `self`.
        let _ = seen.wait_for(|now| *now == role).await;
    }

    /// The Lease was renewed by a call that began at `begun`.
    fn renewed(&self, begun: Duration, timing: LeaseTiming) {
        let until = milliseconds(begun.saturating_add(timing.renew_within));
        self.until.store(until, Ordering::SeqCst);
        self.role.send_replace(Role::Leads);
    }

    fn end(&self) {
        self.until.store(0, Ordering::SeqCst);
        self.role.send_replace(Role::Lost);
    }

    fn leads(&self) -> bool {
        *self.role.borrow() == Role::Leads
    }
}

/// Time since the machine started, including time in which it was asleep.
#[must_use]
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn holder_without_timely_renewal_may_not_write() {
        let leadership = Leadership::among_others();
        assert!(!leadership.may_write());
        let timing = LeaseTiming {
            renew_within: Duration::from_millis(80),
            ..LeaseTiming::default()
        };
        leadership.renewed(now(), timing);
        leadership.won().await;
        assert!(leadership.may_write());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(
            !leadership.may_write(),
            "the Lease expires without any call"
        );
        // A renewal that took longer than it is valid comes too late.
        leadership.renewed(now().saturating_sub(timing.renew_within), timing);
        assert!(!leadership.may_write());
    }

    #[test]
    fn pending_call_arrives_before_another_operator_leads() {
        let timing = LeaseTiming::default();
        assert!(timing.renew_within + crate::runtime::api::calls::DEADLINE <= timing.duration);
        assert!(timing.duration + timing.period < Duration::from_secs(15));
    }

    #[tokio::test]
    async fn single_operator_always_leads() {
        let leadership = Leadership::alone();
        leadership.won().await;
        assert!(leadership.may_write());
        assert!(futures::poll!(Box::pin(leadership.lost())).is_pending());
    }
}
