//! Two process groups never train at once: a process leaves its generation only for a newer one that reaches it.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use jiff::SignedDuration;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_api::{Checkpoint, CheckpointVolume};
use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{PlanReason, Pod, PodPhase};

/// As the node lifecycle controller tells it.
fn is_cut_off(world: &mut World, at: usize) {
    world.is_unreachable(at, true);
    world.observed.pods[at].ready_at = Some(world.now);
}

/// Worker 0 trains alone. Worker 1 joins, and the node of worker 0 is cut off before its kubelet shows generation 2 there.
fn joined_by_one() -> World {
    let mut world = world(1).training();
    (world.job.replicas, world.job.max_replicas) = (2, 2);
    world.settle();
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [2, 2]);
    for at in 0..2 {
        world.is_on(at, &format!("n{at}"));
    }
    world.lingering = true;
    world.seconds_pass(5);
    is_cut_off(&mut world, 0);
    world
}

#[test]
fn a_member_of_a_generation_that_never_formed_does_not_begin_beside_one_that_trains() {
    let mut world = joined_by_one();
    for _ in 0..9 {
        world.settle();
        assert_eq!(world.generation(), 2);
        assert_eq!(world.state(), "NodeUnreachable");
        world.seconds_pass(30);
    }
    let mut back = world.clone();
    back.is_unreachable(0, false);
    assert_eq!(back.settle().reason, PlanReason::Training);
    assert_eq!((back.generation(), back.observed.pods.len()), (2, 2));
    // After as long Kubernetes gives its pods up, too.
    world.seconds_pass(60);
    world.settle();
    assert!(world.observed.pods[0].deleting);
    assert_eq!(world.generation(), 3);
}

#[test]
fn a_member_of_a_generation_that_has_formed_continues_at_once() {
    let mut world = joined_by_one();
    world.observed.formed = Some(2);
    world.settle();
    assert_eq!(world.generation(), 3);
    assert!(!world.observed.pods[0].deleting, "its node may blink");
}

#[test]
fn that_a_generation_has_formed_is_stored() {
    let mut world = joined_by_one();
    world.is_unreachable(0, false);
    world.observed.formed = Some(2);
    world.settle();
    // Another operator, which has not asked anybody yet.
    world.observed.formed = None;
    is_cut_off(&mut world, 0);
    world.settle();
    assert_eq!(world.generation(), 3);
}

/// Of two members one has died, and the other was out of touch while two spares were given places. It is back.
fn with_the_only_state() -> World {
    let mut world = world(2);
    world.job.spares = 2;
    let mut world = world.lobby();
    world.settle();
    world.observed.formed = Some(1);
    world.settle();
    for at in 0..4 {
        world.is_on(at, &format!("n{at}"));
    }
    world.lingering = true;
    is_cut_off(&mut world, 0);
    world.vanishes(1);
    world.settle();
    let places = |pod: &Pod| pod.membership.as_ref().map(|it| it.generation);
    assert_eq!(places(&world.observed.pods[1]), Some(2));
    assert!(!world.observed.pods.iter().any(|pod| pod.deleting));
    world.is_unreachable(0, false);
    world
}

#[test]
fn a_member_with_the_only_state_stays_and_one_whose_generation_never_formed_goes() {
    let mut world = with_the_only_state();
    let mut formed = world.clone();
    world.settle();
    assert!(!world.observed.pods[0].deleting);
    assert_eq!(world.generations()[0], world.generation());
    formed.observed.formed = Some(2);
    formed.settle();
    assert!(
        formed.observed.pods[0].deleting,
        "the others hold a newer one"
    );
}

/// Two members train, and so many of them are asked to leave within a minute. Their replacements are prepared.
fn drained(leaving: usize, has_checkpoint: bool) -> World {
    let mut world = world(2).training();
    world.job.checkpoint = has_checkpoint.then(|| Checkpoint {
        volume: CheckpointVolume::default(),
        every_steps: None,
        every_seconds: None,
        keep: 3,
        best: None,
    });
    world.observed.formed = Some(1);
    world.settle();
    for at in 0..leaving {
        world.is_deleted(at);
        world.observed.pods[at].gone_by = Some(world.now + SignedDuration::from_secs(60));
    }
    world.settle();
    for at in 2..world.observed.pods.len() {
        world.prepared(at);
    }
    world
}

#[test]
fn newcomers_wait_for_those_that_leave_with_the_only_state_and_save_it() {
    let mut world = drained(2, true);
    let plan = world.settle();
    assert_eq!(world.generation(), 1, "{plan:?}");
    assert!(plan.requeue_after.is_some_and(|it| it.as_secs() <= 60));
    let mut gone = world.clone();
    for _ in 0..2 {
        gone.vanishes(0);
    }
    gone.settle();
    assert_eq!(gone.generation(), 2);
    // Longer than their grace nobody waits.
    world.seconds_pass(61);
    world.settle();
    assert_eq!(world.generation(), 2);
}

#[test]
fn newcomers_do_not_wait_for_leavers_if_a_member_stays_or_nothing_can_be_saved() {
    for (leaving, has_checkpoint) in [(1, true), (2, false)] {
        let mut world = drained(leaving, has_checkpoint);
        world.settle();
        assert_eq!(world.generation(), 2, "{leaving} {has_checkpoint}");
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// The operator plans, and is stopped after so many writes.
    Reconcile(usize),
    Prepared(usize),
    /// The kubelet shows the pod's document to its process.
    Shown(usize),
    Dies(usize),
    Restarts(usize),
    CutOff(usize, bool),
    /// A pod on its way out is gone, if its kubelet says so.
    Gone(usize),
    Scale(u32),
    /// Rank 0 tells which generation has formed.
    Tells,
    Seconds(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pod = 0..6_usize;
    let event = prop_oneof![
        8 => prop_oneof![1 => 0..3_usize, 4 => Just(usize::MAX)].prop_map(Event::Reconcile),
        4 => pod.clone().prop_map(Event::Prepared),
        8 => pod.clone().prop_map(Event::Shown),
        1 => pod.clone().prop_map(Event::Dies),
        1 => pod.clone().prop_map(Event::Restarts),
        4 => (pod.clone(), any::<bool>()).prop_map(|(at, is)| Event::CutOff(at, is)),
        1 => pod.prop_map(Event::Gone),
        1 => (1..4_u32).prop_map(Event::Scale),
        1 => Just(Event::Tells),
        2 => prop_oneof![Just(5), Just(70), Just(200)].prop_map(Event::Seconds),
    ];
    collection::vec(event, 1..160)
}

/// The newest generation that the process of a pod's container has heard of, by UID of the pod.
type Heard = HashMap<String, (u32, u64)>;

/// Whether the container for which the document was written runs, whatever the API server knows.
fn lives(pod: &Pod) -> bool {
    let document = pod.membership.as_ref();
    let end = pod.container.termination.as_ref();
    let is_same = document.is_some_and(|it| it.incarnation == pod.incarnation());
    let has_ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
    is_same && !has_ended && pod.phase == PodPhase::Running
}

/// Generations all of whose members are in them: they train. A pod that was given up long ago does not count.
fn groups(world: &World, heard: &Heard) -> Vec<u64> {
    let mut found = HashMap::<u64, u32>::new();
    let mut nodes = HashMap::<u64, u32>::new();
    for pod in &world.observed.pods {
        let document = pod.membership.as_ref();
        for it in document.iter().filter(|it| it.action == Instruction::Join) {
            nodes.insert(it.generation, it.nodes);
        }
        nodes.extend(pod.earlier.iter().map(|it| (it.generation, it.nodes)));
        let since = pod.ready_at.unwrap_or(world.now);
        let is_given_up = pod.deleting && world.now.duration_since(since).as_secs() >= 300;
        let was_told_to_go = pod.deleting && !pod.unreachable;
        let is_here = lives(pod) && !was_told_to_go && !is_given_up;
        let known = heard
            .get(&pod.uid)
            .filter(|(restarts, _)| *restarts == pod.container.restarts);
        if let Some((_, generation)) = known.filter(|_| is_here) {
            *found.entry(*generation).or_default() += 1;
        }
    }
    let whole = found
        .into_iter()
        .filter(|(it, number)| nodes.get(it) == Some(number));
    whole.map(|(generation, _)| generation).collect()
}

fn happen(world: &mut World, heard: &mut Heard, event: &Event) {
    let exists = |at: usize| at < world.observed.pods.len();
    match *event {
        Event::Reconcile(writes) => {
            let plan = world.plan();
            world.carry_out(&plan, writes);
        }
        Event::Prepared(at) if exists(at) => {
            let pod = &world.observed.pods[at];
            if pod.membership.is_none() || !lives(pod) {
                let is_new = pod.container.termination.as_ref();
                if is_new.is_none_or(|end| end.restarts < pod.container.restarts) {
                    world.prepared(at);
                    let unreachable = world.observed.pods[at].unreachable;
                    world.observed.pods[at].ready = !unreachable;
                }
            }
        }
        Event::Shown(at) if exists(at) => {
            let pod = &world.observed.pods[at];
            if let Some(document) = pod
                .membership
                .as_ref()
                .filter(|_| lives(pod) && !pod.unreachable && !pod.deleting)
            {
                let it = (pod.container.restarts, document.generation);
                heard.insert(pod.uid.clone(), it);
            }
        }
        Event::Dies(at) if exists(at) && world.observed.pods[at].phase == PodPhase::Running => {
            world.ends(at, 137, 0);
        }
        Event::Restarts(at) if exists(at) => {
            let pod = &world.observed.pods[at];
            let end = pod.container.termination.as_ref();
            if end.is_some_and(|end| end.restarts == pod.container.restarts) && !pod.unreachable {
                world.restarts(at);
            }
        }
        Event::CutOff(at, true) if exists(at) && !world.observed.pods[at].unreachable => {
            is_cut_off(world, at);
        }
        Event::CutOff(at, false) if exists(at) => {
            world.is_unreachable(at, false);
            let pod = &mut world.observed.pods[at];
            let end = pod.container.termination.as_ref();
            pod.ready &= end.is_none_or(|end| end.restarts < pod.container.restarts);
        }
        Event::Gone(at) if exists(at) => {
            let pod = &world.observed.pods[at];
            if pod.deleting && !pod.unreachable {
                world.vanishes(at);
            }
        }
        Event::Scale(replicas) => {
            (world.job.replicas, world.job.max_replicas) = (replicas, 3);
        }
        Event::Tells => {
            let newest = groups(world, heard).into_iter().max();
            world.observed.formed = newest.max(world.observed.formed);
        }
        Event::Seconds(seconds) => world.seconds_pass(seconds),
        _ => {}
    }
}

proptest! {
    #[test]
    fn no_two_generations_train_at_once(
        workers in 1..4_u32, spares in 0..3_u32, events in events(),
    ) {
        let mut world = world(workers);
        (world.job.min_replicas, world.job.spares) = (1, spares);
        (world.job.backoff_limit, world.lingering) = (100_000, true);
        let mut heard = Heard::new();
        for event in &events {
            happen(&mut world, &mut heard, event);
            // A kubelet that is in touch ends the process of a pod that is deleted.
            let ended = |pod: &&Pod| pod.deleting && !pod.unreachable;
            for pod in world.observed.pods.iter().filter(ended) {
                heard.remove(&pod.uid);
            }
            let groups = groups(&world, &heard);
            assert!(groups.len() < 2, "{groups:?}: {:?}", world.observed.pods);
        }
    }
}
