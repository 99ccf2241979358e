use proptest::prelude::{Strategy, any, prop_assert, proptest};

use super::*;

const fn id(generation: u64, step: u64) -> CheckpointId {
    CheckpointId { generation, step }
}

/// The volume with these copies.
fn volume(copies: &[(u32, CheckpointId)]) -> Contents {
    let mut volume = Contents::new();
    for (shard, id) in copies {
        volume.entry(*shard).or_default().insert(*id);
    }
    volume
}

fn pods(holders: &[Option<u32>]) -> Placement {
    Placement {
        num_shards: u32::try_from(holders.len()).unwrap(),
        shards_per_pod: 1,
        holders: holders.to_vec(),
    }
}

#[test]
fn state_of_one_pod_is_whole_if_each_process_has_its_part() {
    let placement = Placement {
        num_shards: 2,
        shards_per_pod: 2,
        holders: Vec::new(),
    };
    let old = id(1, 900);
    let (first, second) = (id(2, 10), id(2, 20));
    for (copies, expected) in [
        (vec![], None),
        (vec![(0, first), (0, second)], None),
        (vec![(0, old), (0, first), (1, old), (1, second)], Some(old)),
        (
            vec![(0, old), (0, first), (1, first), (1, old)],
            Some(first),
        ),
        (vec![(0, first), (1, second)], None),
    ] {
        let volumes = [volume(&copies)];
        assert_eq!(placement.newest_whole(&volumes), expected, "{copies:?}");
        assert_eq!(placement.newest_safe(&volumes), expected, "{copies:?}");
    }
}

#[test]
fn state_is_safe_if_each_part_is_in_two_pods() {
    let placement = pods(&[Some(1), Some(0)]);
    let (old, new) = (id(1, 10), id(1, 20));
    let mut volumes = [
        volume(&[(0, old), (1, old), (0, new)]),
        volume(&[(0, old), (1, old), (1, new)]),
    ];
    assert_eq!(placement.newest_whole(&volumes), Some(new));
    assert_eq!(placement.newest_safe(&volumes), Some(old));
    assert_eq!(placement.kept(&volumes), Some(old));
    let missing = |volumes: &[Contents], shard| -> Vec<u32> {
        placement.missing(volumes, shard, new).collect()
    };
    assert_eq!(
        (missing(&volumes, 0), missing(&volumes, 1)),
        (vec![1], vec![0])
    );
    volumes[0].entry(1).or_default().insert(new);
    volumes[1].entry(0).or_default().insert(new);
    assert_eq!(placement.kept(&volumes), Some(new));
}

#[test]
fn copies_of_a_former_place_go_once_they_are_not_needed() {
    // Pod 2 was the holder of pod 0.
    let placement = pods(&[Some(1), Some(2), Some(0)]);
    let (old, new) = (id(1, 10), id(1, 20));
    let stray = [(0, old), (0, new)];
    let lost = [Contents::new(), volume(&[(1, new)]), volume(&stray)];
    assert_eq!(placement.strays(&lost, 2), stray, "no state is whole");
    let whole = [
        Contents::new(),
        volume(&[(1, new)]),
        volume(&[(0, old), (0, new), (2, new)]),
    ];
    assert_eq!(placement.strays(&whole, 2), [(0, old)]);
    let safe = [
        volume(&[(0, new), (2, new)]),
        volume(&[(1, new), (0, new)]),
        volume(&[(0, new), (2, new), (1, new)]),
    ];
    assert_eq!(placement.strays(&safe, 2), [(0, new)]);
    assert_eq!(placement.strays(&safe, 0), []);
}

/// What happens to the copy of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// It is in both places.
    Shared,
    /// Its own pod has it, and the process dies before its holder does.
    Written,
    DiedAfterDeletion,
    NotBegun,
}

fn course() -> impl Strategy<Value = Course> {
    any::<u8>().prop_map(|byte| match byte % 8 {
        0..=4 => Course::Shared,
        5 => Course::Written,
        6 => Course::DiedAfterDeletion,
        _ => Course::NotBegun,
    })
}

/// One copy of all processes. Afterwards they may die, and a pod may be lost with its volume.
#[derive(Clone, Debug)]
struct Round {
    courses: Vec<Course>,
    order: Vec<usize>,
    /// Whether the processes die.
    die: bool,
    /// The pod that is replaced then.
    lost: Option<usize>,
    /// Whether holders are chosen again then: by how much each pod's index is shifted.
    shift: usize,
}

const PODS: usize = 3;

fn round() -> impl Strategy<Value = Round> {
    let courses = proptest::collection::vec(course(), PODS);
    let order = any::<[usize; PODS]>();
    (courses, order, any::<u8>(), 0..2 * PODS, 1..PODS).prop_map(
        |(courses, order, die, lost, shift)| Round {
            courses,
            order: order.to_vec(),
            die: die % 3 == 0,
            lost: (lost < PODS).then_some(lost),
            shift,
        },
    )
}

/// A worker of several pods with one process each.
struct Worker {
    placement: Placement,
    volumes: Vec<Contents>,
}

impl Worker {
    fn new(shift: usize) -> Self {
        Self {
            placement: placement(shift),
            volumes: vec![Contents::new(); PODS],
        }
    }

    /// A process deletes what it does not keep, here and at its holder.
    fn supersede(&mut self, pod: usize) {
        let shard = u32::try_from(pod).unwrap();
        let kept = self.placement.kept(&self.volumes);
        let places: Vec<u32> = self.placement.pods_of(shard).collect();
        for place in places {
            self.sweep(place as usize);
            let copies = self.volumes[place as usize].entry(shard).or_default();
            copies.retain(|id| Some(*id) == kept);
        }
    }

    fn sweep(&mut self, pod: usize) {
        let strays = self
            .placement
            .strays(&self.volumes, u32::try_from(pod).unwrap());
        for (stray, id) in strays {
            self.volumes[pod].get_mut(&stray).unwrap().remove(&id);
        }
    }

    fn put(&mut self, place: u32, shard: usize, id: CheckpointId) {
        let shard = u32::try_from(shard).unwrap();
        let volume = &mut self.volumes[place as usize];
        volume.entry(shard).or_default().insert(id);
    }

    /// All processes start again, read the newest whole state, and give its parts to their holders.
    fn restart(&mut self, shift: usize) -> Option<CheckpointId> {
        self.placement = placement(shift);
        let newest = self.placement.newest_whole(&self.volumes)?;
        for pod in 0..PODS {
            self.sweep(pod);
            let kept = self.placement.kept_beside(newest, &self.volumes);
            let shard = u32::try_from(pod).unwrap();
            let copies = self.volumes[pod].entry(shard).or_default();
            copies.retain(|id| *id == newest || Some(*id) == kept);
        }
        assert_eq!(self.placement.newest_whole(&self.volumes), Some(newest));
        for shard in 0..PODS {
            let places: Vec<u32> = self
                .placement
                .pods_of(u32::try_from(shard).unwrap())
                .collect();
            for place in places {
                self.put(place, shard, newest);
            }
        }
        Some(newest)
    }

    fn most_copies(&self) -> usize {
        let of = |volume: &Contents| volume.values().map(BTreeSet::len).sum();
        self.volumes.iter().map(of).max().unwrap_or_default()
    }
}

fn placement(shift: usize) -> Placement {
    let holder = |pod| u32::try_from((pod + shift) % PODS).ok();
    pods(&(0..PODS).map(holder).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn safe_copy_survives_deaths_and_the_loss_of_a_pod(
        rounds in proptest::collection::vec(round(), 1..20),
    ) {
        let mut worker = Worker::new(1);
        let mut safe = None;
        for (step, round) in (1..).zip(rounds) {
            let new = id(1, step);
            let mut processes: Vec<usize> = (0..PODS).collect();
            processes.sort_by_key(|process| round.order[*process]);
            // Each process sees what the earlier ones have left and written.
            for process in processes {
                let course = round.courses[process];
                if course == Course::NotBegun {
                    continue;
                }
                worker.supersede(process);
                let places = worker.placement.pods_of(u32::try_from(process).unwrap());
                let places: Vec<u32> = places.collect();
                let num_written = match course {
                    Course::Shared => 2,
                    Course::Written => 1,
                    Course::DiedAfterDeletion | Course::NotBegun => 0,
                };
                for place in places.into_iter().take(num_written) {
                    worker.put(place, process, new);
                }
                let whole = worker.placement.newest_whole(&worker.volumes);
                prop_assert!(whole >= safe, "{:?} {safe:?}", worker.volumes);
            }
            let now = worker.placement.newest_safe(&worker.volumes);
            prop_assert!(now >= safe, "{:?} {safe:?}", worker.volumes);
            safe = now;
            // A process that died in a copy ends the others.
            let dies = round.courses.iter().any(|it| *it != Course::Shared) || round.die;
            if dies {
                if let Some(lost) = round.lost {
                    worker.volumes[lost].clear();
                }
                let newest = worker.restart(round.shift);
                prop_assert!(newest >= safe, "{:?} {safe:?}", worker.volumes);
                safe = newest;
            }
            prop_assert!(worker.most_copies() <= 4, "{:?}", worker.volumes);
        }
    }
}
