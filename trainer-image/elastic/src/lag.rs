//! When a host that runs one step ahead of its device must wait for the device.
//!
//! The host launches step k + 1 before it reads the result of step k. So when the host learns the
//! result of step k, step k + 1 already runs, on all ranks. If the host must know the result of
//! step k first, it reads it before it launches step k + 1. Both rules depend only on values that
//! are the same on all ranks.

/// Facts about a step that are known before it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each may be true or not, whatever the others are"
)]
pub struct Expected {
    /// The step is the first of its generation. Its extra time does not predict later steps.
    pub is_first: bool,
    /// The step may be skipped or may change the loss scale, so the learning rate and the scale of
    /// the next step depend on its result.
    pub may_be_skipped: bool,
    /// A save of the step's state is due.
    pub is_saved: bool,
    /// An evaluation of the step's state is due.
    pub is_evaluated: bool,
    /// The step is the last one.
    pub is_last: bool,
}

impl Expected {
    /// Whether the next step may begin before the result of this one is known.
    #[must_use]
    pub const fn may_overlap_with_next(self) -> bool {
        let Self {
            is_first,
            may_be_skipped,
            is_saved,
            is_evaluated,
            is_last,
        } = self;
        !(is_first || may_be_skipped || is_saved || is_evaluated || is_last)
    }
}

/// Requests that the ranks agree on at the end of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// A save begins, or ends complete or abandoned.
    pub saves: bool,
    /// All ranks know of a newer generation.
    pub switches: bool,
    /// All ranks leave the job.
    pub leaves: bool,
}

impl Asked {
    /// Whether all ranks must handle the request before they launch another step. If the
    /// next step already runs, they handle it at the end of that step, when all ranks have
    /// the same state again.
    #[must_use]
    pub const fn stops(self) -> bool {
        let Self {
            saves,
            switches,
            leaves,
        } = self;
        saves || switches || leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_does_not_overlap_if_the_next_depends_on_it() {
        let plain = Expected::default();
        assert!(plain.may_overlap_with_next());
        for (what, expected) in [
            (
                "first",
                Expected {
                    is_first: true,
                    ..plain
                },
            ),
            (
                "skipped",
                Expected {
                    may_be_skipped: true,
                    ..plain
                },
            ),
            (
                "saved",
                Expected {
                    is_saved: true,
                    ..plain
                },
            ),
            (
                "evaluated",
                Expected {
                    is_evaluated: true,
                    ..plain
                },
            ),
            (
                "last",
                Expected {
                    is_last: true,
                    ..plain
                },
            ),
        ] {
            assert!(!expected.may_overlap_with_next(), "{what}");
        }
    }

    #[test]
    fn next_step_is_launched_unless_ranks_have_a_request() {
        let nothing = Asked::default();
        assert!(!nothing.stops());
        for (what, asked) in [
            (
                "saves",
                Asked {
                    saves: true,
                    ..nothing
                },
            ),
            (
                "switches",
                Asked {
                    switches: true,
                    ..nothing
                },
            ),
            (
                "leaves",
                Asked {
                    leaves: true,
                    ..nothing
                },
            ),
        ] {
            assert!(asked.stops(), "{what}");
        }
    }
}
