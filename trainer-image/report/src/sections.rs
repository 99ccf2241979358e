//! Splits the time of a step into sections.

use std::time::{Duration, Instant};

roundhouse_contract::closed_enum! {
    /// A section of a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Section {
        /// Gathering samples into a batch.
        Data,
        /// The forward pass and the loss.
        Forward,
        /// The backward pass, with the overlapping reduction between ranks.
        Backward,
        /// Communication that nothing overlaps: the rest of the reduction and the agreement at the
        /// end of the step, with the wait for slower ranks in both.
        Communication,
        /// Gradient norm and the update of the weights.
        Optimizer,
    }
}

impl Section {
    /// Value of the label `section` in metrics.
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

    /// Moves time of a section that was a wait for peers to communication.
    pub fn waited(&mut self, section: Section, waited: Duration) {
        let waited = waited.min(self.spent(section));
        self.spent[section as usize] -= waited;
        self.spent[Section::Communication as usize] += waited;
    }

    /// Time that this rank spent on its own part of the step, without waits for peers.
    #[must_use]
    pub fn own_time(&self) -> Duration {
        let all: Duration = self.spent.iter().sum();
        all.saturating_sub(self.spent(Section::Communication))
    }

    /// Returns the time spent in a section.
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
        // The wait is limited to the section's time, even if a clock was set meanwhile.
        sections.waited(Section::Backward, Duration::from_secs(1));
        assert_eq!(sections.own_time(), Duration::from_millis(8));
        assert_eq!(
            sections.spent(Section::Communication),
            Duration::from_millis(34)
        );
    }
}
