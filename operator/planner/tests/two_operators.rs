//! Two operators work on one job, each with a stale view of it, as if one of them had been paused.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, Observed, Plan, PlanReason, plan};

/// Carries out the writes of a plan whose bits are set, by an operator that saw this state
/// and stops in between. Writes of one kind run in parallel, so any subset of them may be
/// done. The status is stored after all writes, and only if the stored status is still the
/// one that the operator saw.
fn carry_out(world: &mut World, seen: &Observed, plan: &Plan, writes: u64) {
    let mut is_done = true;
    for (at, action) in (0_u32..).zip(&plan.actions) {
        let is_made = writes.checked_shr(at).is_some_and(|bits| bits & 1 == 1);
        is_done &= is_made && world.act(action);
    }
    if is_done && world.observed.status == seen.status {
        world.observed.status = plan.status.clone();
    }
}

/// All memberships that pods ever had.
#[derive(Default)]
struct Documents {
    places: HashMap<(u64, u32), String>,
    masters: HashMap<u64, String>,
    members: HashMap<u64, String>,
}

impl Documents {
    fn check(&mut self, world: &World) {
        for pod in &world.observed.pods {
            let document = pod.membership.as_ref();
            let joined = document.filter(|document| document.action == Instruction::Join);
            let Some(place) = joined else { continue };
            let generation = place.generation;
            let key = (generation, place.node_rank);
            let holder = self.places.entry(key).or_insert_with(|| pod.name.clone());
            assert_eq!(*holder, pod.name, "one place, two holders: {key:?}");
            let master = self.masters.entry(generation);
            let master = master.or_insert_with(|| place.master.address.clone());
            assert_eq!(*master, place.master.address, "two masters: {generation}");
            let members = self.members.entry(generation);
            let members = members.or_insert_with(|| place.members.clone());
            assert_eq!(*members, place.members, "two sets of members: {generation}");
        }
    }
}

/// A worker dies and restarts.
fn comes_back(world: &mut World, at: usize) {
    world.ends(at, 137, 40);
    world.restarts(at);
    world.prepared(at);
}

fn raise(world: &mut World) {
    while world.plan().reason != PlanReason::RaisingGeneration {
        let plan = world.plan();
        world.carry_out(&plan, usize::MAX);
    }
    let plan = world.plan();
    world.carry_out(&plan, usize::MAX);
}

/// The writes of a plan to these pods.
fn writes_to(plan: &Plan, pods: &[&str]) -> Vec<Action> {
    let is_to = |action: &&Action| match action {
        Action::IssueMembership { pod, .. } => pods.contains(&pod.as_str()),
        _ => false,
    };
    plan.actions.iter().filter(is_to).cloned().collect()
}

#[test]
fn rank_has_one_holder_despite_different_views() {
    let mut world = world(4).training();
    let mut documents = Documents::default();
    comes_back(&mut world, 0);
    comes_back(&mut world, 1);
    raise(&mut world);
    // The first operator issues generation 2 to two of four, does not see that worker 1 dies again,
    // and stops.
    let first = world.plan();
    comes_back(&mut world, 1);
    let old = world.observed.clone();
    for action in writes_to(&first, &["digits-worker-0-0", "digits-worker-2-0"]) {
        assert!(world.act(&action));
    }
    documents.check(&world);
    // The second operator does not see these two memberships, and the third one does.
    raise(&mut world);
    let third = world.plan();
    let seen_by_second = Observed {
        status: world.observed.status.clone(),
        ..old
    };
    let seen_by_third = world.observed.clone();
    let second = plan(&world.job, &seen_by_second, world.now);
    carry_out(&mut world, &seen_by_second, &second, u64::MAX);
    documents.check(&world);
    carry_out(&mut world, &seen_by_third, &third, u64::MAX);
    documents.check(&world);
    assert_eq!(world.settle().reason, PlanReason::Training);
    documents.check(&world);
}

#[derive(Clone, Debug)]
enum Step {
    /// An operator reads the current pods.
    SeesPods(usize),
    /// An operator reads the current job.
    SeesJob(usize),
    /// An operator plans with its view, and does these of its writes.
    Plans(usize, u64),
    Prepared(usize),
    ComesBack(usize),
    /// A live pod loses its peers, or finds them again.
    Ready(usize, bool),
    Unreachable(usize, bool),
    Vanishes(usize),
    SecondsPass(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (pod, operator) = (0..6_usize, 0..2_usize);
    let writes = prop_oneof![any::<u64>(), Just(u64::MAX)];
    let step = prop_oneof![
        6 => operator.clone().prop_map(Step::SeesPods),
        6 => operator.clone().prop_map(Step::SeesJob),
        10 => (operator, writes).prop_map(|(by, writes)| Step::Plans(by, writes)),
        6 => pod.clone().prop_map(Step::Prepared),
        3 => pod.clone().prop_map(Step::ComesBack),
        2 => (pod.clone(), any::<bool>()).prop_map(|(at, is)| Step::Ready(at, is)),
        2 => (pod.clone(), any::<bool>()).prop_map(|(at, is)| Step::Unreachable(at, is)),
        1 => pod.prop_map(Step::Vanishes),
        1 => prop_oneof![Just(1), Just(20)].prop_map(Step::SecondsPass),
    ];
    collection::vec(step, 1..150)
}

proptest! {
    #[test]
    fn two_operators_never_assign_a_rank_twice(
        workers in 2..5_u32, spare in 0..3_u32, steps in steps(),
    ) {
        let mut world = world(workers);
        world.job.backoff_limit = 100_000;
        world.job.min_replicas = workers.saturating_sub(spare).max(1);
        let mut world = world.training();
        let mut views = [world.observed.clone(), world.observed.clone()];
        let mut documents = Documents::default();
        for step in steps {
            let exists = |at: usize| at < world.observed.pods.len();
            match step {
                Step::SeesPods(by) => views[by].pods = world.observed.pods.clone(),
                Step::SeesJob(by) => views[by].status = world.observed.status.clone(),
                Step::Plans(by, writes) => {
                    let plan = plan(&world.job, &views[by], world.now);
                    carry_out(&mut world, &views[by], &plan, writes);
                }
                Step::Prepared(at) if exists(at) => world.prepared(at),
                Step::ComesBack(at) if exists(at) => comes_back(&mut world, at),
                Step::Ready(at, is) if exists(at) => world.is_ready(at, is),
                Step::Unreachable(at, is) if exists(at) => world.is_unreachable(at, is),
                Step::Vanishes(at) => world.vanishes(at),
                Step::SecondsPass(seconds) => world.seconds_pass(seconds),
                Step::Prepared(_) | Step::ComesBack(_) | Step::Ready(..) | Step::Unreachable(..) => {}
            }
            documents.check(&world);
        }
    }
}
