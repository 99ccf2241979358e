//! Which of several operators works on the jobs: the one that holds a Lease. The others keep their caches filled, so that one
//! of them can continue at once.
//!
//! The holder renews the Lease. Another takes it when it has seen no renewal for the Lease's whole duration, by its own
//! clock: clocks are never compared. The holder writes nothing more when its last renewal is older than a part of that
//! duration, also if it was stopped in between and does not know yet that time has passed ([`fence`]). What it has sent by
//! then arrives before anybody else may begin, unless an admission webhook holds it up for longer. Names say what a creation is
//! of, so the next operator finds it. Other writes name the version or the UID that they are for, so a late one changes no
//! other object than it was meant for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

pub mod fence;
pub mod keep;
pub mod record;

/// Times of a Lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTiming {
    /// From then on without a renewal another operator takes it.
    pub duration: Duration,
    /// From then on without a renewal its holder writes nothing more.
    pub renew_within: Duration,
    /// Between two looks at it.
    pub period: Duration,
}

impl Default for LeaseTiming {
    /// Another one leads within 15 s after a leader's death: the duration, a period and two calls. Between
    /// `renew_within` and `duration` lies the time for calls on their way ([`crate::runtime::api::calls::DEADLINE`]).
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(12),
            renew_within: Duration::from_secs(7),
            period: Duration::from_millis(1_500),
        }
    }
}

/// How this operator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Follows,
    Leads,
    /// It has led, and does not any more: it ends.
    Lost,
}

/// Whether this operator leads.
#[derive(Debug)]
pub struct Leadership {
    role: watch::Sender<Role>,
    /// Until when it may write: milliseconds of [`now`].
    until: AtomicU64,
}

impl Leadership {
    /// That of an operator which is the only one.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            role: watch::Sender::new(Role::Leads),
            until: AtomicU64::new(u64::MAX),
        }
    }

    /// That of one of several.
    #[must_use]
    pub fn among_others() -> Self {
        Self {
            role: watch::Sender::new(Role::Follows),
            until: AtomicU64::new(0),
        }
    }

    /// Whether it may write.
    #[must_use]
    pub fn may_write(&self) -> bool {
        milliseconds(now()) < self.until.load(Ordering::SeqCst)
    }

    /// Ends when it leads.
    pub async fn won(&self) {
        self.becomes(Role::Leads).await;
    }

    /// Ends when it does not lead any more.
    pub async fn lost(&self) {
        self.becomes(Role::Lost).await;
    }

    async fn becomes(&self, role: Role) {
        let mut seen = self.role.subscribe();
        // The sender lives as long as this.
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

/// Time since the machine started, with the time in which it was asleep.
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
            "nobody has told it that time has passed"
        );
        // A renewal that took longer than it holds comes too late.
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
