//! Which copies of the state a worker keeps in its own volume.
//!
//! Each process of a worker that holds a part of the state writes copies of that part. A step
//! counts as copied once each of these processes has its part. All of them keep the newest such
//! step while they write the next one, so a death in between costs no more than the next copy.

use crate::checkpoint::CheckpointId;

/// Returns the newest state of which every process has its part; `None` if there is none. `parts`
/// are the complete copies of each process.
#[must_use]
pub fn newest_whole(parts: &[Vec<CheckpointId>]) -> Option<CheckpointId> {
    let (first, others) = parts.split_first()?;
    let is_whole = |id: &&CheckpointId| others.iter().all(|part| part.contains(id));
    first.iter().filter(is_whole).max().copied()
}

/// Selects the copies of one process to delete before it writes the next one: all but the newest
/// whole one.
#[must_use]
pub fn superseded(own: &[CheckpointId], parts: &[Vec<CheckpointId>]) -> Vec<CheckpointId> {
    let kept = newest_whole(parts);
    let all = own.iter().copied();
    all.filter(|id| Some(*id) != kept).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, prop_assert, proptest};

    use super::*;

    const fn id(generation: u64, step: u64) -> CheckpointId {
        CheckpointId { generation, step }
    }

    #[test]
    fn state_is_whole_if_each_process_has_its_part() {
        let old = id(1, 900);
        let (first, second) = (id(2, 10), id(2, 20));
        for (parts, expected) in [
            (vec![], None),
            (vec![vec![]], None),
            (vec![vec![first, second]], Some(second)),
            (vec![vec![old, first], vec![old, second]], Some(old)),
            (vec![vec![old, first], vec![first, old]], Some(first)),
            (vec![vec![first], vec![second]], None),
        ] {
            assert_eq!(newest_whole(&parts), expected, "{parts:?}");
        }
    }

    /// What happens to the copy of one process: it may not know that it was due, and may die before
    /// or while it writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Course {
        Written,
        DiedAfterDeletion,
        NotBegun,
    }

    fn course() -> impl Strategy<Value = Course> {
        any::<u8>().prop_map(|byte| match byte % 4 {
            0 | 1 => Course::Written,
            2 => Course::DiedAfterDeletion,
            _ => Course::NotBegun,
        })
    }

    proptest! {
        #[test]
        fn newest_whole_copy_never_becomes_older(
            rounds in proptest::collection::vec(
                (proptest::collection::vec(course(), 3), any::<[usize; 3]>()), 1..20,
            ),
            num_processes in 1_usize..4,
        ) {
            let mut parts = vec![Vec::new(); num_processes];
            let mut newest = None;
            for (step, (courses, order)) in (1..).zip(rounds) {
                let before = parts.clone();
                let mut processes: Vec<usize> = (0..num_processes).collect();
                processes.sort_by_key(|process| order[*process]);
                // The processes look and delete one after the other, in any order, and each sees
                // what the earlier ones have left.
                for process in &processes {
                    if courses[*process] != Course::NotBegun {
                        let gone = superseded(&parts[*process], &parts);
                        parts[*process].retain(|id| !gone.contains(id));
                    }
                }
                for process in processes {
                    if courses[process] == Course::Written {
                        parts[process].push(id(1, step));
                    }
                    prop_assert!(parts[process].len() <= 2, "{before:?} {parts:?}");
                }
                let now = newest_whole(&parts);
                prop_assert!(now >= newest, "{before:?} {parts:?}");
                newest = now;
            }
        }
    }
}
