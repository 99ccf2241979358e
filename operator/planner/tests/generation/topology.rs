//! Node ranks of workers in several topology domains.

use std::collections::HashSet;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_api::MembershipStatus;
use roundhouse_contract::{Action as Instruction, Membership};
use roundhouse_planner::generation::members::Members;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, PlanReason, Pod};

/// Prepared workers with these topology domains.
fn lobby(domains: &[Option<u8>]) -> World {
    let mut world = world(u32::try_from(domains.len()).unwrap()).lobby();
    for (pod, domain) in world.observed.pods.iter_mut().zip(domains) {
        pod.domain = domain.map(|domain| format!("rack-{domain}"));
    }
    world
}

fn members(world: &World) -> Members<'_> {
    Members::of(&world.job, &world.observed, world.now)
}

fn names(pods: &[&Pod]) -> Vec<String> {
    pods.iter().map(|pod| pod.name.clone()).collect()
}

fn order(world: &World) -> Vec<String> {
    names(&members(world).able())
}

fn indices(world: &World) -> Vec<u32> {
    let able = members(world).able();
    able.iter().map(|pod| pod.index.unwrap()).collect()
}

#[test]
fn workers_of_a_domain_are_neighbours() {
    let world = lobby(&[Some(2), Some(1), Some(2), None, Some(1)]);
    assert_eq!(indices(&world), [0, 2, 1, 4, 3]);
    let mut world = lobby(&[Some(2), Some(1), Some(2), Some(1)]);
    world.settle();
    let place = |world: &World, at: usize| {
        let place = world.observed.pods[at].membership.as_ref();
        place.unwrap().node_rank
    };
    let places: Vec<u32> = (0..4).map(|at| place(&world, at)).collect();
    assert_eq!(places, [0, 2, 1, 3]);
    // The next generation starts with the survivor that was first, and a restarted worker is among
    // its neighbours.
    world.vanishes(0);
    world.settle();
    let last = world.observed.pods.len() - 1;
    world.prepared(last);
    world.observed.pods[last].domain = Some("rack-2".to_owned());
    assert_eq!(indices(&world), [2, 0, 1, 3]);
}

#[test]
fn unknown_domains_keep_the_order_of_seniority() {
    let mut world = lobby(&[None, None, None]);
    world.settle();
    world.vanishes(0);
    world.settle();
    let last = world.observed.pods.len() - 1;
    world.prepared(last);
    assert_eq!(indices(&world), [1, 2, 0], "survivors first");
}

/// Domains of workers, and whether each has a place of the previous generation.
fn workers() -> impl Strategy<Value = (Vec<Option<u8>>, Vec<bool>)> {
    let domain = prop_oneof![1 => Just(None), 4 => (0..3_u8).prop_map(Some)];
    (1..9_usize).prop_flat_map(move |number| {
        let domains = collection::vec(domain.clone(), number);
        (domains, collection::vec(any::<bool>(), number))
    })
}

/// Some workers have places of an older generation, in another order.
fn with_survivors(domains: &[Option<u8>], survives: &[bool]) -> World {
    let mut world = lobby(domains);
    let number = u32::try_from(domains.len()).unwrap();
    world.observed.status.membership = Some(MembershipStatus {
        nonce: String::new(),
        completed: String::new(),
        formed: 0,
        generation: 1,
        world_size: number,
        nodes: number,
        members: "another".to_owned(),
        order: String::new(),
    });
    for (place, (pod, survives)) in world
        .observed
        .pods
        .iter_mut()
        .rev()
        .zip(survives)
        .enumerate()
    {
        pod.membership = survives.then(|| Membership {
            life: String::new(),
            nonce: String::new(),
            generation: 1,
            action: Instruction::Join,
            node_rank: u32::try_from(place).unwrap(),
            nodes: number,
            procs_per_worker: 1,
            master: roundhouse_contract::Master {
                address: "10.0.0.9".to_owned(),
                port: 1,
            },
            members: "another".to_owned(),
            incarnation: pod.incarnation(),
            issued_at: String::new(),
            repeats: 0,
        });
    }
    world
}

proptest! {
    #[test]
    fn ranks_follow_domains_and_are_stable(
        (domains, survives) in workers(), written in any::<u16>(), turn in 0..9_usize,
    ) {
        let mut world = with_survivors(&domains, &survives);
        let raised = order(&world);
        let all: HashSet<&String> = raised.iter().collect();
        assert_eq!(all.len(), domains.len(), "everybody once");

        // Workers of one domain are adjacent.
        let able = members(&world).able();
        let mut seen = Vec::new();
        for pod in &able {
            if seen.last() != Some(&&pod.domain) {
                assert!(domains.iter().all(Option::is_none) || !seen.contains(&&pod.domain), "{able:?}");
                seen.push(&pod.domain);
            }
        }
        // The first worker is the one without topology: a survivor, if there is one.
        let mut blind = world.clone();
        for pod in &mut blind.observed.pods {
            pod.domain = None;
        }
        assert_eq!(order(&blind)[0], raised[0]);

        // The result depends neither on the order of the pods nor on which of them have their new
        // place.
        world.observed.pods.rotate_left(turn % domains.len());
        assert_eq!(order(&world), raised);
        let mut issue = world.plan();
        for _ in 0..4 {
            if issue.reason == PlanReason::IssuingMembership {
                break;
            }
            world.carry_out(&issue, usize::MAX);
            issue = world.plan();
        }
        for (at, action) in issue.actions.iter().enumerate() {
            let is_document = matches!(action, Action::IssueMembership { .. });
            if is_document && written & (1 << (at % 16)) != 0 {
                world.act(action);
            }
        }
        let members = members(&world);
        let placed = members.in_raised_order(&members.able());
        assert_eq!(names(&placed.unwrap()), raised);
    }
}
