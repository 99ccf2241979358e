//! Committed steps that were lost and repeated, as in a job's status.

use serde::{Deserialize, Serialize};

use crate::counter;

/// The newest steps that were committed, lost and repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Repeat {
    /// First of the steps.
    #[serde(deserialize_with = "counter::read")]
    pub first: u64,
    /// Last of the steps.
    #[serde(deserialize_with = "counter::read")]
    pub last: u64,
    /// Step of the state from which training continued.
    #[serde(deserialize_with = "counter::read")]
    pub after: u64,
    /// Source of that state.
    pub source: RepeatSource,
    /// The rank that had the state in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// Source of the state from which training continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum RepeatSource {
    /// Training started again with the initial weights.
    Start,
    /// The state was in a checkpoint.
    Checkpoint,
    /// The state was in the memory of a process, or in a local copy of its worker.
    Memory,
}

impl Repeat {
    /// Number and range of the repeated steps, and the cause: a sentence without its full stop.
    #[must_use]
    pub fn words(&self, num_steps: u64) -> String {
        let Self {
            first,
            last,
            after,
            source,
            rank,
        } = self;
        let (steps, were) = if num_steps == 1 {
            ("step", "was")
        } else {
            ("steps", "were")
        };
        let span = if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        };
        let cause = match (source, rank) {
            (RepeatSource::Start, _) => "training began again with the initial weights".to_owned(),
            (RepeatSource::Checkpoint, _) => {
                format!("training continued from the checkpoint of step {after}")
            }
            (RepeatSource::Memory, Some(rank)) => {
                format!("training continued from the state of rank {rank} after step {after}")
            }
            (RepeatSource::Memory, None) => {
                format!("training continued from a worker's state after step {after}")
            }
        };
        format!("{num_steps} committed {steps} ({span}) {were} lost and repeated: {cause}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_message_names_steps_and_source_of_state() {
        let of = |first, source, rank| Repeat {
            first,
            last: 42,
            after: 30,
            source,
            rank,
        };
        for (repeat, num_steps, expected) in [
            (
                of(31, RepeatSource::Checkpoint, None),
                12,
                "12 committed steps (31-42) were lost and repeated: training continued from the checkpoint of step 30",
            ),
            (
                of(42, RepeatSource::Memory, Some(2)),
                1,
                "1 committed step (42) was lost and repeated: training continued from the state of rank 2 after step 30",
            ),
            (
                of(1, RepeatSource::Start, None),
                42,
                "42 committed steps (1-42) were lost and repeated: training began again with the initial weights",
            ),
        ] {
            assert_eq!(repeat.words(num_steps), expected);
            let text = serde_json::to_string(&repeat).unwrap();
            assert_eq!(serde_json::from_str::<Repeat>(&text).unwrap(), repeat);
        }
    }
}
