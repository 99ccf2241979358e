//! Whether a refused job could begin, remembered while neither its spec nor its limits change. A
//! job that waits for a place checks all older refused jobs of its namespace, and parsing a spec
//! takes milliseconds.

use roundhouse_planner::tenancy::Limits;

/// The last verdict on a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RememberedVerdict(Option<Verdict>);

#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// `metadata.generation` of the job.
    generation: i64,
    /// Address of the limits, which neither change nor move while the operator runs.
    limits: usize,
    cannot_begin: bool,
}

impl RememberedVerdict {
    /// Whether the job cannot begin; `None` if no verdict is known for this generation of its spec
    /// and these limits.
    pub(crate) fn cannot_begin(self, generation: i64, limits: &Limits) -> Option<bool> {
        let known = self
            .0
            .filter(|it| it.generation == generation && it.limits == address(limits));
        known.map(|it| it.cannot_begin)
    }

    pub(crate) fn store(&mut self, generation: i64, limits: &Limits, cannot_begin: bool) {
        self.0 = Some(Verdict {
            generation,
            limits: address(limits),
            cannot_begin,
        });
    }
}

fn address(limits: &Limits) -> usize {
    std::ptr::from_ref(limits).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_is_remembered_per_spec_and_limits() {
        let mut verdict = RememberedVerdict::default();
        let limits = [Limits::default(), Limits::default()];
        assert_eq!(verdict.cannot_begin(1, &limits[0]), None);
        verdict.store(1, &limits[0], true);
        assert_eq!(verdict.cannot_begin(1, &limits[0]), Some(true));
        assert_eq!(
            verdict.cannot_begin(2, &limits[0]),
            None,
            "its spec was edited"
        );
        assert_eq!(
            verdict.cannot_begin(1, &limits[1]),
            None,
            "its namespace has other limits"
        );
    }
}
