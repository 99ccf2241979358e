//! The faults, by name.

/// Code, reason and seconds of a refusal.
pub(crate) type Refusal = (u16, &'static str, Option<u32>);

/// One kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// Watches break off in the midst of what they tell.
    Cut,
    /// Watches tell everything ten seconds late.
    Late,
    /// Watches tell everything half a minute late: the operator does not wait that long for its own writes.
    VeryLate,
    /// Watches tell each event once more some seconds later, when newer ones have been told.
    Repeated,
    /// A watch breaks off, and the cache from which the API server answers the next list and watch is older.
    Older,
    /// A watch breaks off, and begins again with a list only: what was between is never told.
    Skipped,
    /// 409 for writes.
    Conflict,
    /// 429 with Retry-After for everything.
    Busy,
    /// 500 for everything.
    Broken,
    /// 503 for everything.
    Unavailable,
    /// 429, 500, 503 or 504 for each tenth, each second or each hundredth request. The seed says which.
    Often,
    /// Writes are carried out, and their answers do not arrive.
    Lost,
    /// 500 for the Lease, for longer than the operator may do without it: it ends, and another one begins.
    Unrenewed,
    /// The operator dies after a write, and another one begins. The seed says after which.
    Dies,
    /// etcd and the API server end, and come back as they were some time ago. It strikes all jobs at once.
    Restored,
}

impl Fault {
    /// Those that a proxy makes, at places that a seed chooses.
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
            Self::Late => "watches tell everything 10 s late",
            Self::VeryLate => "watches tell everything 30 s late",
            Self::Repeated => "watches tell everything again 3 s later",
            Self::Older => "lists and watches are those of an older cache",
            Self::Skipped => "events are dropped between a watch and the next list",
            Self::Conflict => "409",
            Self::Busy => "429 with Retry-After",
            Self::Broken => "500",
            Self::Unavailable => "503",
            Self::Often => "429, 500, 503 and 504 for 1, 10 or 50 % of the requests",
            Self::Lost => "answers are lost after the write",
            Self::Unrenewed => "the Lease cannot be renewed",
            Self::Dies => "the operator dies, after each write",
            Self::Restored => {
                "etcd and the API server are killed, and restored from an older backup"
            }
        }
    }

    /// What it answers, if it refuses.
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
