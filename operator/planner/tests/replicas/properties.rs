//! Properties that always hold, for random faults, operators that stop between two writes, and
//! operators with stale views.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_api::{Gang, TopologyMode};
use roundhouse_planner::{Observed, plan};

use super::cluster::{Cluster, SIZE};
use super::gangs::no_pod_is_created_into_a_gang_that_lacks_pods;

#[derive(Clone, Debug)]
enum Event {
    /// The operator plans, and does the writes whose bits are set.
    Plans(u64),
    /// A second operator keeps what it sees now, or plans with it.
    Sees,
    PlansStale(u64),
    Kubelets,
    Agents,
    /// The agent of one pod reads its documents; the others do not yet.
    Agent(usize),
    ProcessDies(usize),
    ContainerDies(usize),
    Vanishes(usize),
    Deleted(usize),
    CutOff(usize, bool),
    Fails(usize),
    Scale(u32),
    /// The gang scheduler has room for this many pods.
    Room(usize),
    SecondsPass(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pod = 0..9_usize;
    let writes = prop_oneof![1 => any::<u64>(), 3 => Just(u64::MAX)];
    let event = prop_oneof![
        8 => writes.clone().prop_map(Event::Plans),
        1 => Just(Event::Sees),
        1 => writes.prop_map(Event::PlansStale),
        6 => Just(Event::Kubelets),
        4 => Just(Event::Agents),
        8 => pod.clone().prop_map(Event::Agent),
        2 => pod.clone().prop_map(Event::ProcessDies),
        1 => pod.clone().prop_map(Event::ContainerDies),
        1 => pod.clone().prop_map(Event::Vanishes),
        1 => pod.clone().prop_map(Event::Deleted),
        2 => (pod.clone(), any::<bool>()).prop_map(|(at, is)| Event::CutOff(at, is)),
        1 => pod.prop_map(Event::Fails),
        1 => (1..4_u32).prop_map(Event::Scale),
        1 => (0..9_usize).prop_map(Event::Room),
        1 => prop_oneof![Just(1), Just(70), Just(400)].prop_map(Event::SecondsPass),
    ];
    collection::vec(event, 1..150)
}

/// Carries out some writes of a plan. The status is stored after all writes, and only if it is
/// still the one that the operator saw.
fn carry_out(cluster: &mut Cluster, seen: &Observed, writes: u64) {
    let plan = plan(&cluster.world.job, seen, cluster.world.now);
    no_pod_is_created_into_a_gang_that_lacks_pods(seen, &plan);
    let mut is_done = true;
    for (at, action) in (0_u32..).zip(&plan.actions) {
        let is_made = writes.checked_shr(at).is_some_and(|bits| bits & 1 == 1);
        is_done &= is_made && cluster.world.act(action);
    }
    if is_done && cluster.world.observed.status == seen.status {
        cluster.world.observed.status = plan.status;
    }
}

fn happen(cluster: &mut Cluster, stale: &mut Observed, number: usize, event: &Event) {
    let names: Vec<String> = cluster
        .world
        .observed
        .pods
        .iter()
        .map(|it| it.name.clone())
        .collect();
    // Each plan has a nonce of its own.
    cluster.world.observed.nonce = format!("{number:032x}");
    match event {
        Event::Plans(writes) => {
            let seen = cluster.world.observed.clone();
            carry_out(cluster, &seen, *writes);
        }
        Event::Sees => *stale = cluster.world.observed.clone(),
        Event::PlansStale(writes) => {
            stale.nonce = format!("{number:031x}s");
            let seen = stale.clone();
            carry_out(cluster, &seen, *writes);
        }
        Event::Kubelets => cluster.kubelets_work(),
        Event::Agents => cluster.agents_work(),
        Event::Scale(replicas) => {
            let job = &mut cluster.world.job;
            (job.replicas, job.min_replicas) = (*replicas, job.min_replicas.min(*replicas));
        }
        Event::Room(pods) => cluster.room = *pods,
        Event::SecondsPass(seconds) => cluster.world.seconds_pass(*seconds),
        Event::ProcessDies(at)
        | Event::ContainerDies(at)
        | Event::Vanishes(at)
        | Event::Deleted(at)
        | Event::Fails(at)
        | Event::Agent(at)
        | Event::CutOff(at, _) => {
            let Some(name) = names.get(*at) else { return };
            let runs = cluster.agents.contains_key(&cluster.pod(name).uid);
            let is_cut_off = cluster.pod(name).unreachable;
            match event {
                Event::Agent(_) => cluster.agent_works(name),
                Event::ProcessDies(_) if runs => cluster.process_dies(name),
                Event::ContainerDies(_) if runs && !is_cut_off => cluster.container_dies(name),
                // A pod on a node that does not answer cannot be removed while it may run.
                Event::Vanishes(_) if !is_cut_off => cluster.vanishes(name),
                Event::Deleted(_) => cluster.is_deleted(name),
                Event::Fails(at) if runs && !is_cut_off => {
                    cluster.world.fails(*at, "Evicted");
                    cluster.agents_work();
                }
                Event::CutOff(_, is) if runs => cluster.is_cut_off(name, *is),
                _ => {}
            }
        }
    }
}

/// Each replica of a formed generation is whole, and its processes have one life.
fn generations_have_whole_replicas_of_one_life(cluster: &Cluster) {
    let formed: BTreeSet<u64> = cluster.formed().into_iter().collect();
    let mut replicas = BTreeMap::<(u64, u32), (BTreeSet<u32>, BTreeSet<String>)>::new();
    for agent in cluster.agents.values() {
        let (Some(life), Some(document)) = (&agent.life, &agent.joined) else {
            continue;
        };
        if formed.contains(&document.generation) {
            let replica = replicas.entry((document.generation, document.node_rank / SIZE));
            let (places, lives) = replica.or_default();
            places.insert(document.node_rank % SIZE);
            lives.insert(life.clone());
        }
    }
    for ((generation, replica), (places, lives)) in replicas {
        assert_eq!(
            places.len(),
            SIZE as usize,
            "half a replica: {generation} {replica}"
        );
        assert_eq!(
            lives.len(),
            1,
            "two lives: {generation} {replica} {lives:?}"
        );
    }
}

/// Lets the events happen, checks what always holds, and that everything recovers afterwards.
fn replicas_survive(mut cluster: Cluster, events: &[Event]) {
    let mut stale = cluster.world.observed.clone();
    let (mut newest, mut numbers) = (0, BTreeMap::<String, u64>::new());
    let mut places = BTreeMap::<(u64, u32), String>::new();
    for (number, event) in events.iter().enumerate() {
        happen(&mut cluster, &mut stale, number, event);
        let generation = cluster.world.generation();
        assert!(generation >= newest, "the number shrank");
        newest = generation;
        generations_have_whole_replicas_of_one_life(&cluster);
        lives_are_in_one_domain(&cluster);
        for pod in &cluster.world.observed.pods {
            if let Some(document) = &pod.membership
                && document.action == roundhouse_contract::Action::Join
            {
                assert!(document.generation <= newest, "issued before it was stored");
                let place = (document.generation, document.node_rank);
                let holder = places.entry(place).or_insert_with(|| pod.name.clone());
                assert_eq!(holder, &pod.name, "one place, two holders");
            }
            let Some(place) = &pod.replica else { continue };
            let before = numbers.insert(pod.uid.clone(), place.number).unwrap_or(0);
            assert!(place.number >= before, "an older life");
        }
        let formed = cluster.formed();
        assert!(formed.len() < 2, "two generations train: {formed:?}");
    }
    // Everything answers again, and there is room for all pods.
    cluster.room = usize::MAX;
    for at in 0..cluster.world.observed.pods.len() {
        let name = cluster.world.observed.pods[at].name.clone();
        cluster.is_cut_off(&name, false);
    }
    cluster.world.observed.pods.retain(|pod| !pod.deleting);
    let left: BTreeSet<String> = cluster
        .world
        .observed
        .pods
        .iter()
        .map(|it| it.uid.clone())
        .collect();
    cluster.agents.retain(|uid, _| left.contains(uid));
    for round in 0..10 {
        cluster.world.observed.nonce = format!("{round:030x}ff");
        cluster.world.seconds_pass(400);
        cluster.settle();
    }
    let status = &cluster.world.observed.status;
    assert_eq!(
        cluster.world.state(),
        "Training",
        "{:?}",
        cluster.world.plan()
    );
    let nodes = status.membership.as_ref().unwrap().nodes;
    assert_eq!(nodes, cluster.world.job.replicas, "{status:?}");
    let wanted = cluster.world.job.num_pods() as usize;
    assert_eq!(cluster.world.observed.pods.len(), wanted);
    assert_eq!(cluster.formed(), [cluster.world.generation()]);
}

/// The pods of a life are in one topology domain, if that is required.
fn lives_are_in_one_domain(cluster: &Cluster) {
    if cluster.world.job.topology_of_replicas() != Some(TopologyMode::Required) {
        return;
    }
    let mut domains = BTreeMap::<&str, BTreeSet<&str>>::new();
    for pod in &cluster.world.observed.pods {
        if let Some((place, domain)) = pod.replica.as_ref().zip(pod.domain.as_deref()) {
            domains.entry(&place.life).or_default().insert(domain);
        }
    }
    for (life, domains) in domains {
        assert_eq!(domains.len(), 1, "{life}: {domains:?}");
    }
}

proptest! {
    #[test]
    fn replicas_are_whole_and_recover(
        replicas in 1..4_u32, spares in 0..3_u32, events in events(), keeps_copies in any::<bool>(),
    ) {
        let mut cluster = Cluster::of(replicas, spares);
        cluster.world.saves(keeps_copies);
        replicas_survive(cluster, &events);
    }

    #[test]
    fn replicas_with_gangs_are_whole_and_recover(
        replicas in 1..4_u32, spares in 0..3_u32, least in 1..3_u32, events in events(),
    ) {
        let mut cluster = Cluster::of(replicas, spares).with_gang(Gang::Coscheduling);
        cluster.world.job.min_replicas = least.min(replicas);
        replicas_survive(cluster, &events);
    }

    #[test]
    fn replicas_with_domains_are_whole_and_recover(
        replicas in 1..4_u32, spares in 0..3_u32, events in events(), is_required in any::<bool>(),
        keeps_copies in any::<bool>(), has_gang in any::<bool>(),
    ) {
        let mode = if is_required { TopologyMode::Required } else { TopologyMode::Preferred };
        let gang = if has_gang { Gang::Volcano } else { Gang::None };
        let mut cluster = Cluster::with_topology(replicas, spares, mode).with_gang(gang);
        cluster.world.saves(keeps_copies);
        replicas_survive(cluster, &events);
    }
}
