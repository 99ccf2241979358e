//! When a host that runs a step ahead of its device waits for it.
//!
//! The host launches step k + 1 and only then reads what step k has come to. So what it learns from the end of step k
//! finds step k + 1 under way, on all ranks alike. Where the end of step k has to be known first, the host reads it
//! before it launches step k + 1. Both rules follow from what is the same on all ranks.

/// What is known of a step before it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each may be true or not, whatever the others are"
)]
pub struct Expected {
    /// It is the first of its generation. Its extra time says nothing about later steps.
    pub is_first: bool,
    /// It may be skipped, or change the scale of the loss: the rate and the scale of the next step follow from its end.
    pub may_be_skipped: bool,
    /// A save of its state is due.
    pub is_saved: bool,
    /// An evaluation of its state is due.
    pub is_evaluated: bool,
    /// It is the last one.
    pub is_last: bool,
}

impl Expected {
    /// Whether the next step can begin before the end of this one is known.
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

/// What the end of a step asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// A save begins, is completed or given up.
    pub saves: bool,
    /// All ranks know of a newer generation.
    pub switches: bool,
    /// All ranks leave.
    pub leaves: bool,
}

impl Asked {
    /// Whether all ranks must handle it before they launch another step. If one is launched already, they do so at
    /// its end, when all have the same state again.
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
    fn a_step_whose_end_decides_about_the_next_one_does_not_overlap_with_it() {
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
    fn steps_go_on_unless_the_end_of_one_asks_for_something_else() {
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
