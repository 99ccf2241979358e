//! Writes that a job needs and that do not happen.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A write that the job needs and that does not happen.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedWrite {
    /// Cause, in one word: `Refused`, `NoAnswer` or `Undone` by the API server, `NameTaken` by
    /// another object, `GangSchedulerMissing`, or `RepairReverted` by another client.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Cause, in a sentence, or in the words of the API server.
    #[schemars(length(max = 32_768))]
    pub message: String,
}

impl BlockedWrite {
    /// A write that is blocked for this reason.
    pub fn new(reason: BlockReason, message: impl Into<String>) -> Self {
        Self {
            reason: reason.as_str().to_owned(),
            message: message.into(),
        }
    }

    /// The reason; `None` if a newer operator wrote one that this version does not know.
    #[must_use]
    pub fn reason(&self) -> Option<BlockReason> {
        let mut all = BlockReason::ALL.into_iter();
        all.find(|known| known.as_str() == self.reason)
    }
}

roundhouse_contract::closed_enum! {
    /// Why a write does not happen.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BlockReason {
        /// The API server refused it.
        Refused,
        /// The API server did not answer in time, most often because an admission webhook is slow.
        NoAnswer,
        /// The API server stored something else, most often because an admission webhook changed
        /// it.
        Undone,
        /// Another object has the name of an object that the job needs.
        NameTaken,
        /// The gang scheduler of the job is not installed.
        GangSchedulerMissing,
        /// Another client reverts each repair of the object, so the next repair waits.
        RepairReverted,
    }
}

impl BlockReason {
    /// The reason as the status contains it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "Refused",
            Self::NoAnswer => "NoAnswer",
            Self::Undone => "Undone",
            Self::NameTaken => "NameTaken",
            Self::GangSchedulerMissing => "GangSchedulerMissing",
            Self::RepairReverted => "RepairReverted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_read_back_and_an_unknown_one_is_none() {
        for reason in BlockReason::ALL {
            assert_eq!(BlockedWrite::new(reason, "").reason(), Some(reason));
        }
        let newer = BlockedWrite {
            reason: "Newer".to_owned(),
            message: String::new(),
        };
        assert_eq!(newer.reason(), None);
    }
}
