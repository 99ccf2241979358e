//! Counts calls to the API server: each try by itself, with the code of its answer and the time
//! until the answer began.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Registry};

use super::labels::{Resource, Verb};
use super::work::SECONDS;
use super::{counter, register};

/// One field per metric.
#[derive(Clone, Debug)]
pub struct Api {
    calls: IntCounterVec,
    seconds: HistogramVec,
    clock_ahead: IntGauge,
}

/// How a call to the API server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The API server answered with this HTTP status.
    Status(u16),
    /// The operator gave the call up before it was answered.
    Timeout,
    /// There was no connection, or it broke.
    Connection,
}

impl Api {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let seconds = HistogramOpts::new(
            "roundhouse_operator_api_call_seconds",
            "Time from a call to the API server until the headers of its answer, by verb.",
        );
        let seconds = HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["verb"])?;
        Ok(Self {
            calls: counter(
                registry,
                "roundhouse_operator_api_calls_total",
                "Calls to the API server by verb, resource and code: the HTTP status, timeout or connection.",
                &["verb", "resource", "code"],
            )?,
            seconds: register(registry, seconds)?,
            clock_ahead: register(
                registry,
                IntGauge::new(
                    "roundhouse_operator_clock_ahead_seconds",
                    "How far the operator's clock is ahead of that of the API server, by the Date of its last answer; negative if it is behind.",
                )?,
            )?,
        })
    }

    /// Compares the clocks: an answer with this HTTP `Date` header arrived at `now` of the
    /// operator's clock.
    pub fn dated(&self, date: &str, now: Timestamp) {
        if let Ok(theirs) = rfc2822::DateTimeParser::new().parse_timestamp(date) {
            self.clock_ahead.set(now.duration_since(theirs).as_secs());
        }
    }

    /// How many seconds the operator's clock is ahead of the API server's; negative if it is
    /// behind.
    #[must_use]
    pub fn clock_ahead(&self) -> i64 {
        self.clock_ahead.get()
    }

    /// Counts a call that ended, or whose answer began.
    pub fn called(&self, verb: Verb, resource: Resource, outcome: Outcome, took: Duration) {
        let code = match outcome {
            Outcome::Status(status) => status.to_string(),
            Outcome::Timeout => "timeout".to_owned(),
            Outcome::Connection => "connection".to_owned(),
        };
        self.calls
            .with_label_values(&[verb.as_str(), resource.as_str(), &code])
            .inc();
        self.seconds
            .with_label_values(&[verb.as_str()])
            .observe(took.as_secs_f64());
    }
}
