//! Repairs of one job's objects. Another controller or a webhook may revert a repair at once, each
//! time, so the pauses between two repairs of one object grow.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use roundhouse_planner::{GroupWrites, PodGroup, Repair};

use crate::memory::expectations::Written;

/// Pauses between two repairs of one object.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The pause after the first repair. Each further repair doubles it.
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_mins(1),
            longest: Duration::from_hours(1),
        }
    }
}

impl Pauses {
    /// How long a repair is remembered. A second repair within this time means that another client
    /// reverts them.
    fn memory(self) -> Duration {
        self.longest * 2
    }
}

/// What another client has done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drift {
    /// The object is not as the operator built it.
    Modified,
    Deleted,
}

type Object = (Written, Drift);

/// The last repair of each object of one job.
#[derive(Debug)]
pub struct Repairs {
    pauses: Pauses,
    last: HashMap<Object, Last>,
}

#[derive(Clone, Debug)]
struct Last {
    at: Instant,
    pause: Duration,
    /// The content of a PodGroup, which changes with its job.
    group: Option<PodGroup>,
}

impl Repairs {
    #[must_use]
    pub fn new(pauses: Pauses) -> Self {
        let last = HashMap::new();
        Self { pauses, last }
    }

    /// An object was repaired, or created.
    pub fn note(&mut self, what: Written, drift: Drift) {
        self.note_content(what, drift, None);
    }

    /// A PodGroup was created, or changed to this content.
    pub fn note_group(&mut self, gang: u32, drift: Drift, group: &PodGroup) {
        self.note_content(Written::PodGroup(gang), drift, Some(group.clone()));
    }

    fn note_content(&mut self, what: Written, drift: Drift, group: Option<PodGroup>) {
        let Pauses { first, longest } = self.pauses;
        let object = (what, drift);
        let before = self.last.get(&object);
        let before = before.filter(|last| last.at.elapsed() < self.pauses.memory());
        let before = before.filter(|last| drift == Drift::Deleted || last.group == group);
        let pause = match (before, drift) {
            (Some(last), _) => longest.min(first.max(last.pause * 2)),
            (None, Drift::Modified) => first,
            // The first creation is no repair, so a deletion after it does not start the back-off.
            (None, Drift::Deleted) => Duration::ZERO,
        };
        let at = Instant::now();
        self.last.insert(object, Last { at, pause, group });
    }

    /// When the operator repairs an object that has drifted.
    #[must_use]
    pub fn next(&self, what: Written, drift: Drift) -> Repair {
        let last = self.last.get(&(what, drift));
        match last.map(|last| (last.at.elapsed(), last.pause)) {
            Some((_, Duration::ZERO)) => Repair::Now,
            Some((age, pause)) if age < pause => Repair::Later(pause.saturating_sub(age)),
            Some((age, _)) if age < self.pauses.memory() => Repair::Again,
            Some(_) | None => Repair::Now,
        }
    }

    /// The writes of the PodGroup of a gang.
    #[must_use]
    pub fn of_group(&self, gang: u32) -> GroupWrites {
        let what = Written::PodGroup(gang);
        let last = self.last.get(&(what.clone(), Drift::Modified));
        GroupWrites {
            repaired_to: last.and_then(|last| last.group.clone()),
            changed: self.next(what.clone(), Drift::Modified),
            deleted: self.next(what, Drift::Deleted),
        }
    }

    /// The gangs whose PodGroups were written.
    pub fn gangs(&self) -> impl Iterator<Item = u32> {
        self.last.keys().filter_map(|(what, _)| match what {
            Written::PodGroup(gang) => Some(*gang),
            Written::Status | Written::Pod(_) | Written::Service | Written::NetworkPolicy => None,
        })
    }

    /// The operator itself has deleted the PodGroup of a gang: creating it again repairs nothing.
    pub fn group_removed(&mut self, gang: u32) {
        for drift in [Drift::Modified, Drift::Deleted] {
            self.last.remove(&(Written::PodGroup(gang), drift));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves all repairs this far into the past.
    fn pass(repaired: &mut Repairs, span: Duration) {
        for last in repaired.last.values_mut() {
            last.at = last.at.checked_sub(span).unwrap();
        }
    }

    fn changed(repairs: &Repairs) -> Repair {
        repairs.next(Written::Service, Drift::Modified)
    }

    #[test]
    fn the_pause_between_two_repairs_doubles_up_to_one_hour() {
        let mut repairs = Repairs::new(Pauses::default());
        assert_eq!(changed(&repairs), Repair::Now);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            repairs.note(Written::Service, Drift::Modified);
            pass(&mut repairs, Duration::from_mins(minutes - 1));
            assert!(matches!(changed(&repairs), Repair::Later(_)), "{minutes}");
            pass(&mut repairs, Duration::from_mins(1));
            assert_eq!(changed(&repairs), Repair::Again, "{minutes}");
        }
        let policy = repairs.next(Written::NetworkPolicy, Drift::Modified);
        assert_eq!(policy, Repair::Now);
        pass(&mut repairs, Duration::from_hours(2));
        assert_eq!(changed(&repairs), Repair::Now, "no drift for a long time");
        repairs.note(Written::Service, Drift::Modified);
        pass(&mut repairs, Duration::from_mins(1));
        assert_eq!(changed(&repairs), Repair::Again, "the first pause again");
    }

    #[test]
    fn deleted_object_is_recreated_at_once_only_twice() {
        let mut repairs = Repairs::new(Pauses::default());
        let next = |repairs: &Repairs| repairs.next(Written::Service, Drift::Deleted);
        assert_eq!(next(&repairs), Repair::Now, "it was never made");
        repairs.note(Written::Service, Drift::Deleted);
        assert_eq!(next(&repairs), Repair::Now, "it was deleted once");
        for minutes in [1, 2, 4] {
            repairs.note(Written::Service, Drift::Deleted);
            assert!(matches!(next(&repairs), Repair::Later(_)), "{minutes}");
            pass(&mut repairs, Duration::from_mins(minutes));
            assert_eq!(next(&repairs), Repair::Again, "{minutes}");
        }
        assert_eq!(
            changed(&repairs),
            Repair::Now,
            "modifications count apart from deletions"
        );
    }

    #[test]
    fn only_a_reverted_pod_group_postpones_its_repair() {
        let mut repairs = Repairs::new(Pauses::default());
        let says = |min_member| PodGroup {
            min_member,
            ..PodGroup::default()
        };
        let due = |repairs: &Repairs, min_member| repairs.of_group(0).due(&says(min_member));
        for min_member in [2, 3, 4] {
            assert_eq!(due(&repairs, min_member), Repair::Now, "the job was scaled");
            repairs.note_group(0, Drift::Modified, &says(min_member));
        }
        let reverted = due(&repairs, 4);
        assert!(matches!(reverted, Repair::Later(_)), "a webhook reverts it");
        assert_eq!(due(&repairs, 5), Repair::Now, "the job was scaled again");
        pass(&mut repairs, Duration::from_mins(1));
        assert_eq!(due(&repairs, 4), Repair::Again);
        for _ in 0..2 {
            assert_eq!(repairs.of_group(0).deleted, Repair::Now);
            repairs.note_group(0, Drift::Deleted, &says(4));
        }
        assert!(matches!(repairs.of_group(0).deleted, Repair::Later(_)));
        let other = repairs.of_group(1);
        assert_eq!(other, GroupWrites::default(), "each gang has its own");
        assert_eq!(repairs.gangs().max(), Some(0));
        repairs.group_removed(0);
        assert_eq!(repairs.of_group(0), GroupWrites::default(), "suspended");
    }
}
