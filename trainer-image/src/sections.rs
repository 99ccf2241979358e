//! Where the time of a step goes.

use std::time::{Duration, Instant};

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Gathering samples into a batch.
    Data,
    /// The model and the loss.
    Forward,
    /// Gradients, with the reduction between ranks that overlaps them.
    Backward,
    /// Collectives that nothing overlaps: the agreement at the step's end.
    Communication,
    /// Gradient norm and the update of the weights.
    Optimizer,
}

impl Section {
    /// All of them, in the order of a step.
    pub const ALL: [Self; 5] = [
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Communication,
        Self::Optimizer,
    ];

    /// The metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Communication => "communication",
            Self::Optimizer => "optimizer",
        }
    }
}

/// Time spent in each section of one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sections {
    spent: [Duration; Section::ALL.len()],
}

impl Sections {
    /// Runs `work` and counts its time under `section`.
    pub fn time<T>(&mut self, section: Section, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        self.spent[section as usize] += started.elapsed();
        result
    }

    /// Time spent in a section.
    #[must_use]
    pub const fn spent(&self, section: Section) -> Duration {
        self.spent[section as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_under_its_section() {
        let mut sections = Sections::default();
        sections.time(Section::Backward, || {
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(2) {}
        });
        assert!(sections.spent(Section::Backward) >= Duration::from_millis(2));
        assert_eq!(sections.spent(Section::Data), Duration::ZERO);
    }
}
