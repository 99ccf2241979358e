//! The inconsistencies that an audit can find.

use std::fmt;

use crate::ledger::file_name;

/// The first inconsistency of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// There is no ledger to audit.
    Empty,
    /// A line cannot be parsed.
    BadLine {
        /// Generation of the file.
        generation: u64,
        /// Number of the line, from 1.
        number: u64,
        /// Message of the JSON parser, or the other generation that the header names.
        reason: String,
    },
    /// The hash of a line does not match its contents and the line before.
    BrokenHash {
        /// Generation of the file.
        generation: u64,
        /// Number of the line, from 1.
        number: u64,
        /// Step of the line.
        step: u64,
    },
    /// A generation continues from a line that no older file has.
    Gap {
        /// Number of the generation that continues.
        generation: u64,
        /// Step of the missing line.
        step: u64,
    },
    /// A generation trained on other data, with another batch or seed.
    OtherTraining {
        /// Number of that generation.
        generation: u64,
    },
    /// A step is missing or comes twice.
    StepOutOfOrder {
        /// Generation of the line.
        generation: u64,
        /// Step of the line.
        step: u64,
        /// The step that must come next.
        expected: u64,
    },
    /// A generation committed a step after a newer generation had done so.
    GenerationOutOfOrder {
        /// Generation of the line.
        generation: u64,
        /// Step of the line.
        step: u64,
    },
    /// A step left samples out.
    SamplesLeftOut {
        /// Step of the line.
        step: u64,
        /// Generation of the line.
        generation: u64,
        /// Epoch and places, expected and found.
        places: String,
    },
    /// A step used samples again.
    SamplesRepeated {
        /// Step of the line.
        step: u64,
        /// Generation of the line.
        generation: u64,
        /// Epoch and places, expected and found.
        places: String,
    },
    /// The order of an epoch contains a sample twice, which is a defect of the program.
    NoPermutation {
        /// Number of the epoch, from 0.
        epoch: u64,
        /// Place of the repeated sample in the order.
        place: u64,
    },
    /// A checkpoint was saved after a line that the ledger does not contain.
    UnknownCheckpoint {
        /// Generation of that line.
        generation: u64,
        /// Step of that line.
        step: u64,
    },
}

/// Epoch, first place, and place after the last one.
type Places = (u64, u64, u64);

impl Finding {
    /// Classifies places that are not the expected ones. Samples are left out if the places begin
    /// or end after the expected ones.
    pub(super) fn samples(step: u64, generation: u64, found: Places, expected: Places) -> Self {
        let text =
            |(epoch, start, end): Places| format!("places {start} to {end} of epoch {epoch}");
        let places = format!("{} instead of {}", text(found), text(expected));
        let (epoch, start, end) = found;
        if (epoch, start) > (expected.0, expected.1)
            || ((epoch, start) == (expected.0, expected.1) && end < expected.2)
        {
            Self::SamplesLeftOut {
                step,
                generation,
                places,
            }
        } else {
            Self::SamplesRepeated {
                step,
                generation,
                places,
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "there is no ledger"),
            Self::BadLine {
                generation,
                number,
                reason,
            } => write!(
                f,
                "generation {generation}, line {number} cannot be read: {reason}"
            ),
            Self::BrokenHash {
                generation,
                number,
                step,
            } => write!(
                f,
                "line {number} of {}, step {step}: the hash is broken; this line or the one before it is not \
                 what was written",
                file_name(*generation)
            ),
            Self::Gap { generation, step } => write!(
                f,
                "generation {generation} continues from step {step}, but no older file has that line: \
                 a gap"
            ),
            Self::OtherTraining { generation } => write!(
                f,
                "generation {generation} trained on other data, another batch size or another seed \
                 than the newest one"
            ),
            Self::StepOutOfOrder {
                generation,
                step,
                expected,
            } => write!(
                f,
                "generation {generation}: step {step} stands where step {expected} belongs: {}",
                if step > expected { "a gap" } else { "a repeat" }
            ),
            Self::GenerationOutOfOrder { generation, step } => write!(
                f,
                "step {step} was committed by generation {generation} after a newer one"
            ),
            Self::SamplesLeftOut {
                step,
                generation,
                places,
            } => write!(
                f,
                "generation {generation}, step {step} left samples out: {places}"
            ),
            Self::SamplesRepeated {
                step,
                generation,
                places,
            } => write!(
                f,
                "generation {generation}, step {step} used samples again: {places}"
            ),
            Self::NoPermutation { epoch, place } => write!(
                f,
                "the order of epoch {epoch} names the sample at place {place} twice"
            ),
            Self::UnknownCheckpoint { generation, step } => write!(
                f,
                "a checkpoint was saved after step {step} of generation {generation}, which the \
                 ledger does not have"
            ),
        }
    }
}

impl std::error::Error for Finding {}
