//! Whatever happens to pods, and wherever the operator is stopped: what must always hold.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::HashMap;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_planner::testing::{World, world};

#[derive(Clone, Debug)]
enum Event {
    /// The operator plans, and is stopped after so many writes.
    Reconcile(usize),
    Prepared(usize),
    Ends(usize, i32),
    Restarts(usize),
    Vanishes(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pod = 0..4_usize;
    let code = prop_oneof![Just(0), Just(75), Just(137), Just(1)];
    let event = prop_oneof![
        6 => prop_oneof![0..3_usize, Just(usize::MAX)].prop_map(Event::Reconcile),
        6 => pod.clone().prop_map(Event::Prepared),
        2 => (pod.clone(), code).prop_map(|(at, code)| Event::Ends(at, code)),
        2 => pod.clone().prop_map(Event::Restarts),
        1 => pod.prop_map(Event::Vanishes),
    ];
    collection::vec(event, 1..120)
}

fn happen(world: &mut World, event: &Event) {
    let ended = |world: &World, at: usize| {
        world.observed.pods.get(at).is_some_and(|pod| {
            pod.container
                .termination
                .as_ref()
                .is_some_and(|end| end.restarts == pod.container.restarts)
        })
    };
    match *event {
        Event::Reconcile(writes) => {
            let plan = world.plan();
            world.carry_out(&plan, writes);
        }
        Event::Prepared(at) if !ended(world, at) => world.prepared(at),
        Event::Ends(at, code) if !ended(world, at) => world.ends(at, code, 0),
        Event::Restarts(at) => {
            let failed = |end: &roundhouse_planner::Termination| end.exit_code != 0;
            let pod = world.observed.pods.get(at);
            if ended(world, at)
                && pod
                    .unwrap()
                    .container
                    .termination
                    .as_ref()
                    .is_some_and(failed)
            {
                world.restarts(at);
            }
        }
        Event::Vanishes(at) => world.vanishes(at),
        Event::Prepared(_) | Event::Ends(..) => {}
    }
}

proptest! {
    #[test]
    fn one_generation_has_one_set_of_members_and_numbers_only_grow(
        workers in 1..4_u32, events in events(), backoff in any::<bool>(),
    ) {
        let mut world = world(workers);
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
    }

    #[test]
    fn a_world_that_is_left_alone_trains(workers in 1..4_u32, events in events()) {
        let mut world = world(workers);
        world.job.backoff_limit = 100_000;
        for event in &events {
            happen(&mut world, event);
        }
        // From now on everything that can be prepared is, and a container that failed restarts.
        for _ in 0..6 {
            world.settle();
            for at in 0..world.observed.pods.len() {
                happen(&mut world, &Event::Restarts(at));
                let alive = world.observed.pods[at].membership.is_some()
                    && world.observed.pods[at].container.restarts
                        == world.observed.pods[at].membership.as_ref().unwrap().incarnation.restarts;
                if !alive {
                    happen(&mut world, &Event::Prepared(at));
                }
            }
        }
        // A member of a broken generation that lives on loses its peers, and comes back.
        for _ in 0..6 {
            if world.state() == "Training" || world.observed.status.is_terminal() {
                break;
            }
            for at in 0..world.observed.pods.len() {
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
