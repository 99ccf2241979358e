//! Whether a refused job can begin, remembered for as long as neither its spec nor its limits change. A job that waits for a
//! place checks all older refused jobs of its namespace, and parsing a spec takes milliseconds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use roundhouse_planner::policy::Limits;

/// Verdicts that are kept. With more refused jobs, all are judged again.
const MOST: usize = 10_000;

/// What was decided, by the UIDs of jobs.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Mutex<HashMap<String, Verdict>>);

#[derive(Clone, Copy, Debug)]
struct Verdict {
    generation: i64,
    /// Address of the limits, which neither change nor move while the operator runs.
    limits: usize,
    cannot_begin: bool,
}

impl Verdicts {
    /// Whether the job of this UID cannot begin. Calls `judge` if that is not known yet for this generation of its spec.
    pub(super) fn of(
        &self,
        uid: &str,
        generation: i64,
        limits: &Limits,
        judge: impl FnOnce() -> bool,
    ) -> bool {
        let limits = std::ptr::from_ref(limits).addr();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(uid);
        let known = known.filter(|it| it.generation == generation && it.limits == limits);
        if let Some(known) = known {
            return known.cannot_begin;
        }
        let cannot_begin = judge();
        if all.len() >= MOST {
            all.clear();
        }
        let verdict = Verdict {
            generation,
            limits,
            cannot_begin,
        };
        all.insert(uid.to_owned(), verdict);
        cannot_begin
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_refused_job_is_judged_once_for_each_spec_and_limits() {
        let (verdicts, judged) = (Verdicts::default(), Cell::new(0));
        let limits = [Limits::default(), Limits::default()];
        let ask = |uid: &str, generation: i64, limits: &Limits| {
            verdicts.of(uid, generation, limits, || {
                judged.set(judged.get() + 1);
                generation == 1
            })
        };
        for _ in 0..100 {
            assert!(ask("a", 1, &limits[0]) && ask("b", 1, &limits[0]));
        }
        assert_eq!(judged.get(), 2);
        assert!(!ask("a", 2, &limits[0]), "its spec was edited");
        assert!(ask("b", 1, &limits[1]), "its namespace has other limits");
        assert_eq!(judged.get(), 4);
    }

    #[test]
    fn verdicts_are_bounded() {
        let (verdicts, limits) = (Verdicts::default(), Limits::default());
        for uid in 0..=MOST {
            verdicts.of(&uid.to_string(), 1, &limits, || true);
        }
        assert_eq!(verdicts.0.lock().unwrap().len(), 1);
    }
}
