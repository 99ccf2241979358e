//! Property: two generations never train at once, for random sequences of events.

use std::collections::HashMap;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Pod, PodPhase};

use super::is_cut_off;

#[derive(Clone, Debug)]
enum Event {
    /// The operator plans, and stops after this number of writes.
    Reconcile(usize),
    Prepared(usize),
    /// The kubelet shows the pod's membership to its process.
    Shown(usize),
    Dies(usize),
    Restarts(usize),
    CutOff(usize, bool),
    /// A terminating pod is removed, if its kubelet can report it.
    Gone(usize),
    Scale(u32),
    /// Rank 0 reports which generation has formed.
    Reports,
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
        1 => Just(Event::Reports),
        2 => prop_oneof![Just(5), Just(70), Just(200)].prop_map(Event::Seconds),
    ];
    collection::vec(event, 1..160)
}

/// Container restarts and newest received generation of each pod's process, by UID of the pod.
type Received = HashMap<String, (u32, u64)>;

/// Whether the container with this membership runs, independent of what the API server knows.
fn lives(pod: &Pod) -> bool {
    let document = pod.membership.as_ref();
    let end = pod.container.termination.as_ref();
    let is_same = document.is_some_and(|it| it.incarnation == pod.incarnation());
    let has_ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
    is_same && !has_ended && pod.phase == PodPhase::Running
}

/// Generations of which every member has received the membership: they train. A pod that was given
/// up long ago does not count.
fn groups(world: &World, received: &Received) -> Vec<u64> {
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
        let was_asked_to_leave = pod.deleting && !pod.unreachable;
        let is_here = lives(pod) && !was_asked_to_leave && !is_given_up;
        let known = received
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

fn happen(world: &mut World, received: &mut Received, event: &Event) {
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
                received.insert(pod.uid.clone(), it);
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
        Event::Reports => {
            let newest = groups(world, received).into_iter().max();
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
        let mut received = Received::new();
        for event in &events {
            happen(&mut world, &mut received, event);
            // A reachable kubelet ends the process of a deleted pod.
            let ended = |pod: &&Pod| pod.deleting && !pod.unreachable;
            for pod in world.observed.pods.iter().filter(ended) {
                received.remove(&pod.uid);
            }
            let groups = groups(&world, &received);
            assert!(groups.len() < 2, "{groups:?}: {:?}", world.observed.pods);
        }
    }
}
