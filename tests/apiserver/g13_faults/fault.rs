//! The kinds of faults.

/// HTTP status code, reason, and seconds of Retry-After of a refusal.
pub(crate) type Refusal = (u16, &'static str, Option<u32>);

/// A kind of fault between the operator and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// Watches break between two events.
    Cut,
    /// Watches deliver each event 10 s late.
    Late,
    /// Watches deliver each event 30 s late: longer than the operator waits for its own writes.
    VeryLate,
    /// Watches deliver each event again 3 s later, after newer events.
    Repeated,
    /// A watch breaks, and the API server answers the next list and watch from an older cache.
    Older,
    /// A watch breaks and restarts with a list. It never delivers the events in between.
    Skipped,
    /// Writes are refused with 409.
    Conflict,
    /// All requests are refused with 429 and Retry-After.
    Busy,
    /// All requests are refused with 500.
    Broken,
    /// All requests are refused with 503.
    Unavailable,
    /// 1 %, 10 % or 50 % of the requests are refused with 429, 500, 503 or 504. The seed chooses
    /// the rate.
    Often,
    /// The API server carries out writes, and their responses are lost.
    Lost,
    /// The Lease is refused with 500 until the operator loses it and exits. Another operator
    /// starts.
    Unrenewed,
    /// The operator crashes after a write, and another operator starts. The seed chooses the
    /// write.
    Dies,
    /// etcd and the API server are killed and restarted from a backup. All jobs are affected.
    Restored,
}

impl Fault {
    /// The faults that the proxy injects, at points that a seed chooses.
    pub(crate) const OF_PROXY: [Self; 13] = [
        Self::Cut,
        Self::Late,
        Self::VeryLate,
        Self::Repeated,
        Self::Older,
        Self::Skipped,
        Self::Conflict,
        Self::Busy,
        Self::Broken,
        Self::Unavailable,
        Self::Often,
        Self::Lost,
        Self::Unrenewed,
    ];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Cut => "watches are cut",
            Self::Late => "watches deliver events 10 s late",
            Self::VeryLate => "watches deliver events 30 s late",
            Self::Repeated => "watches deliver events again 3 s later",
            Self::Older => "lists and watches come from an older cache",
            Self::Skipped => "events are dropped between a watch and the next list",
            Self::Conflict => "409",
            Self::Busy => "429 with Retry-After",
            Self::Broken => "500",
            Self::Unavailable => "503",
            Self::Often => "429, 500, 503 and 504 for 1, 10 or 50 % of the requests",
            Self::Lost => "responses to writes are lost",
            Self::Unrenewed => "the Lease cannot be renewed",
            Self::Dies => "the operator crashes after a write",
            Self::Restored => {
                "etcd and the API server are killed, and restored from an older backup"
            }
        }
    }

    /// The refusal that the proxy answers with; `None` if the fault is not a single refusal.
    pub(crate) const fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Conflict => Some((409, "Conflict", None)),
            Self::Busy => Some((429, "TooManyRequests", Some(1))),
            Self::Broken | Self::Unrenewed => Some((500, "InternalError", None)),
            Self::Unavailable => Some((503, "ServiceUnavailable", None)),
            Self::Cut
            | Self::Late
            | Self::VeryLate
            | Self::Repeated
            | Self::Older
            | Self::Skipped
            | Self::Often
            | Self::Lost
            | Self::Dies
            | Self::Restored => None,
        }
    }
}
