//! Properties that always hold, for random events of pods and random stops of the operator.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_api::Gang;
use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, raw_gang_job, world, world_of};
use roundhouse_planner::worker_state::{has_lost_its_processes, is_alive, is_member_of_any};
use roundhouse_planner::{PlanReason, Pod, PodPhase};

use self::invariants::{
    no_worker_comes_before_its_group, only_a_deadline_that_counts_ends_it,
    only_a_job_that_has_ended_is_deleted, the_group_is_right,
};

#[path = "properties/invariants.rs"]
mod invariants;

#[derive(Clone, Debug)]
enum Event {
    /// The operator plans, and stops after this number of writes.
    Reconcile(usize),
    Prepared(usize),
    Ends(usize, i32),
    Restarts(usize),
    /// A process dies, and the agent restarts all processes of the worker.
    ReplicaDies(usize),
    /// Those processes are in the lobby.
    ReplicaPrepared(usize),
    Vanishes(usize),
    /// A client deletes a pod, and it stays in termination.
    Deleted(usize),
    /// The node refuses a pod, or evicts it.
    Fails(usize),
    Unreachable(usize, bool),
    Cordoned(usize),
    Suspend(bool),
    Scale(u32),
    SecondsPass(i64),
    /// Whether deleted pods stay in termination from now on.
    Lingering(bool),
    /// Whether the API server confirms the observed state.
    Fresh(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pod = 0..6_usize;
    let code =
        prop_oneof![1 => Just(0), 4 => Just(75), 4 => Just(137), 4 => Just(1), 4 => Just(77)];
    let event = prop_oneof![
        6 => prop_oneof![0..3_usize, Just(usize::MAX)].prop_map(Event::Reconcile),
        6 => pod.clone().prop_map(Event::Prepared),
        2 => (pod.clone(), code).prop_map(|(at, code)| Event::Ends(at, code)),
        2 => pod.clone().prop_map(Event::Restarts),
        4 => pod.clone().prop_map(Event::ReplicaDies),
        2 => pod.clone().prop_map(Event::ReplicaPrepared),
        1 => pod.clone().prop_map(Event::Vanishes),
        1 => pod.clone().prop_map(Event::Deleted),
        1 => pod.clone().prop_map(Event::Fails),
        1 => (pod.clone(), any::<bool>()).prop_map(|(at, is)| Event::Unreachable(at, is)),
        1 => pod.prop_map(Event::Cordoned),
        1 => prop_oneof![1 => Just(true), 3 => Just(false)].prop_map(Event::Suspend),
        1 => (1..4_u32).prop_map(Event::Scale),
        1 => prop_oneof![Just(1), Just(40), Just(2_000)].prop_map(Event::SecondsPass),
        1 => any::<bool>().prop_map(Event::Lingering),
        1 => any::<bool>().prop_map(Event::Fresh),
    ];
    collection::vec(event, 1..120)
}

fn happen(world: &mut World, event: &Event) {
    match *event {
        Event::Reconcile(writes) => {
            let plan = world.plan();
            only_a_deadline_that_counts_ends_it(world, &plan);
            no_worker_comes_before_its_group(world, &plan);
            only_a_job_that_has_ended_is_deleted(world, &plan);
            world.carry_out(&plan, writes);
        }
        Event::Prepared(at) if runs(world, at) && !is_in_lobby(world, at) => {
            world.prepared(at);
            let has_topology = world.job.scheduling.topology_key.is_some();
            let pod = &mut world.observed.pods[at];
            pod.node.get_or_insert_with(|| format!("n{}", at % 3));
            pod.domain = has_topology.then(|| format!("rack-{}", at % 2));
        }
        Event::Ends(at, code) if runs(world, at) => {
            let at_once = world.now;
            world.ends(at, code, 0);
            let end = &mut world.observed.pods[at].container.termination;
            end.as_mut().unwrap().finished_at = Some(at_once);
        }
        Event::Restarts(at) => {
            let fails = |pod: &Pod| {
                let end = pod.container.termination.as_ref();
                pod.phase != PodPhase::Failed
                    && end.is_some_and(|end| {
                        end.exit_code != 0 && end.restarts == pod.container.restarts
                    })
            };
            if world.observed.pods.get(at).is_some_and(fails) {
                world.restarts(at);
            }
        }
        Event::ReplicaDies(at) if runs(world, at) => {
            let pod = &world.observed.pods[at];
            if let Some(document) = pod.membership.as_ref().filter(|_| is_member_of_any(pod)) {
                world.replica_dies(at, 137, document.generation, 0);
            }
        }
        Event::ReplicaPrepared(at) => world.process_is_prepared(at),
        Event::Vanishes(at) => world.vanishes(at),
        Event::Deleted(at) => world.is_deleted(at),
        Event::Fails(at) if runs(world, at) => world.fails(at, "OutOfcpu"),
        Event::Unreachable(at, is) => world.is_unreachable(at, is),
        Event::Cordoned(at) => {
            if let Some(pod) = world.observed.pods.get_mut(at) {
                pod.cordoned = true;
            }
        }
        Event::Suspend(is) => world.job.suspend = is,
        Event::Scale(replicas) => {
            world.job.replicas = replicas;
            world.job.min_replicas = world.job.min_replicas.min(replicas);
        }
        Event::SecondsPass(seconds) => world.seconds_pass(seconds),
        Event::Lingering(is) => world.lingering = is,
        Event::Fresh(is) => world.observed.fresh = is,
        Event::Prepared(_) | Event::Ends(..) | Event::Fails(_) | Event::ReplicaDies(_) => {}
    }
}

/// The start deadline and the longest active time.
fn deadlines() -> impl Strategy<Value = [Option<Duration>; 2]> {
    let one = || prop_oneof![2 => Just(None), 1 => Just(Some(30)), 1 => Just(Some(3_000))];
    (one(), one()).prop_map(|(start, active)| [start, active].map(|it| it.map(Duration::from_secs)))
}

/// Which copies of the state pods keep.
#[derive(Clone, Copy, Debug)]
enum Copies {
    None,
    Own,
    OfPeers,
}

fn copies() -> impl Strategy<Value = Copies> {
    prop_oneof![Just(Copies::None), Just(Copies::Own), Just(Copies::OfPeers)]
}

fn keep(copies: Copies, world: &mut World) {
    match copies {
        Copies::None => {}
        Copies::Own => world.saves(true),
        Copies::OfPeers => world.has_peer_copies(),
    }
}

fn gangs() -> impl Strategy<Value = Gang> {
    prop_oneof![
        Just(Gang::None),
        Just(Gang::Coscheduling),
        Just(Gang::Volcano),
        Just(Gang::Kubernetes)
    ]
}

/// Whether a pod's container has not ended.
fn runs(world: &World, at: usize) -> bool {
    world.observed.pods.get(at).is_some_and(|pod| {
        let end = pod.container.termination.as_ref();
        let ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
        !ended && pod.phase != PodPhase::Failed
    })
}

/// Whether all processes of a pod's member have restarted and wait for the next generation.
fn is_in_lobby(world: &World, at: usize) -> bool {
    let pod = world.observed.pods.get(at);
    pod.is_some_and(has_lost_its_processes)
}

/// Generations of which every member is alive, reachable and not asked to leave.
fn live_generations(world: &World) -> Vec<u64> {
    let mut members = HashMap::<u64, (u32, u32)>::new();
    for pod in &world.observed.pods {
        let trains = is_alive(pod) && !has_lost_its_processes(pod);
        let lives = trains && !pod.deleting && !pod.unreachable;
        let Some(document) = pod.membership.as_ref().filter(|_| lives) else {
            continue;
        };
        if document.action == Instruction::Join {
            let (found, nodes) = members.entry(document.generation).or_default();
            (*found, *nodes) = (*found + 1, document.nodes);
        }
    }
    let whole = members
        .into_iter()
        .filter(|(_, (found, nodes))| found == nodes);
    whole.map(|(generation, _)| generation).collect()
}

proptest! {
    #[test]
    fn generations_have_one_set_of_members_and_grow(
        workers in 1..4_u32, events in events(), backoff in any::<bool>(), deadlines in deadlines(), gang in gangs(),
        has_topology in any::<bool>(),
        ttl in proptest::option::of(prop_oneof![Just(0), Just(60)]), spares in 0..3_u32, copies in copies(),
    ) {
        let mut raw = raw_gang_job(workers, gang);
        raw.spec.scheduling.topology_key = has_topology.then(|| "rack".to_owned());
        let mut world = world_of(&raw);
        world.job.spares = spares;
        keep(copies, &mut world);
        [world.job.start_deadline, world.job.active_deadline] = deadlines;
        world.job.ttl_after_finished = ttl.map(Duration::from_secs);
        world.job.backoff_limit = if backoff { 1 } else { 1_000 };
        let mut newest = 0;
        let mut members = HashMap::<u64, String>::new();
        let mut places = HashMap::<(u64, u32), String>::new();
        let mut terminal = None;
        for event in &events {
            happen(&mut world, event);
            let status = &world.observed.status;
            let generation = status.membership.as_ref().map_or(0, |m| m.generation);
            assert!(generation >= newest, "the number shrank");
            newest = generation;
            for pod in &world.observed.pods {
                let Some(place) = &pod.membership else { continue };
                assert!(place.generation <= newest, "issued before it was stored");
                let known = members.entry(place.generation).or_insert_with(|| place.members.clone());
                assert_eq!(known, &place.members, "two sets of members");
                if place.action == Instruction::Leave {
                    continue;
                }
                let key = (place.generation, place.node_rank);
                let holder = places.entry(key).or_insert_with(|| place.incarnation.pod_uid.clone());
                assert_eq!(holder, &place.incarnation.pod_uid, "one place, two holders");
            }
            if let Some(ended) = &terminal {
                assert_eq!(ended, &status.conditions, "a terminal state was left");
            } else if status.is_terminal() {
                terminal = Some(status.conditions.clone());
            }
        }
        let rest = world.settle();
        assert!(rest.actions.is_empty());
        let live = live_generations(&world);
        assert!(live.len() < 2, "two live generations: {live:?} {:?}", world.observed);
        let status = &world.observed.status;
        let stays = world.observed.pods.iter().filter(|pod| !pod.deleting).count();
        if rest.reason != PlanReason::Finishing {
            the_group_is_right(&world);
        }
        // Once a member has completed, no worker is removed or added.
        if status.is_terminal() || rest.reason == PlanReason::Finishing {
            return Ok(());
        }
        let wanted = if world.job.suspend { 0 } else { world.job.num_pods() as usize };
        let resuming = world.state() == "Resuming";
        assert!(stays == wanted || resuming, "{stays} pods of {wanted}: {:?}", world.observed);
    }

    #[test]
    fn undisturbed_job_trains(
        workers in 1..4_u32, events in events(), deadlines in deadlines(), spares in 0..3_u32,
        copies in copies(),
    ) {
        let mut world = world(workers);
        world.job.spares = spares;
        keep(copies, &mut world);
        [world.job.start_deadline, world.job.active_deadline] = deadlines;
        world.job.backoff_limit = 100_000;
        for event in &events {
            happen(&mut world, event);
        }
        (world.job.suspend, world.lingering) = (false, false);
        for at in 0..world.observed.pods.len() {
            world.is_unreachable(at, false);
        }
        // From now on every pod that can be prepared is prepared, and a failed container restarts.
        for _ in 0..6 {
            world.seconds_pass(300);
            world.settle();
            for at in 0..world.observed.pods.len() {
                happen(&mut world, &Event::Restarts(at));
                happen(&mut world, &Event::ReplicaPrepared(at));
                let alive = world.observed.pods[at].membership.is_some()
                    && world.observed.pods[at].container.restarts
                        == world.observed.pods[at].membership.as_ref().unwrap().incarnation.restarts;
                if !alive {
                    happen(&mut world, &Event::Prepared(at));
                }
            }
        }
        // A live member of a broken generation loses its peers and restarts.
        for _ in 0..6 {
            if world.state() == "Training" || world.observed.status.is_terminal() {
                break;
            }
            for at in 0..world.observed.pods.len() {
                if is_in_lobby(&world, at) {
                    continue;
                }
                happen(&mut world, &Event::Ends(at, 75));
                happen(&mut world, &Event::Restarts(at));
                happen(&mut world, &Event::Prepared(at));
            }
            world.settle();
        }
        assert!(
            world.state() == "Training" || world.observed.status.is_terminal(),
            "{:?}", world.observed
        );
    }
}
