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
    /// What nothing overlaps: the rest of the reduction, the agreement at the step's end, and in both the
    /// wait for slower ranks.
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
        self.add(section, started.elapsed());
        result
    }

    /// Counts time under `section`.
    pub fn add(&mut self, section: Section, spent: Duration) {
        self.spent[section as usize] += spent;
    }

    /// So much of a section was a wait for peers: it counts as communication.
    pub fn waited(&mut self, section: Section, waited: Duration) {
        let waited = waited.min(self.spent(section));
        self.spent[section as usize] -= waited;
        self.spent[Section::Communication as usize] += waited;
    }

    /// What this rank spent on its own part of the step, whatever its peers did.
    #[must_use]
    pub fn own_time(&self) -> Duration {
        let all: Duration = self.spent.iter().sum();
        all.saturating_sub(self.spent(Section::Communication))
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

    #[test]
    fn waits_do_not_count_as_own_time() {
        let mut sections = Sections {
            spent: [1, 2, 30, 4, 5].map(Duration::from_millis),
        };
        assert_eq!(sections.own_time(), Duration::from_millis(38));
        sections.waited(Section::Backward, Duration::from_millis(20));
        assert_eq!(sections.spent(Section::Backward), Duration::from_millis(10));
        assert_eq!(sections.own_time(), Duration::from_millis(18));
        // A clock that was set meanwhile takes no more than there was.
        sections.waited(Section::Backward, Duration::from_secs(1));
        assert_eq!(sections.own_time(), Duration::from_millis(8));
        assert_eq!(
            sections.spent(Section::Communication),
            Duration::from_millis(34)
        );
    }
}
