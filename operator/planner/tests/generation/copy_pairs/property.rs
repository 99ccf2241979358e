//! Property: the documents of a pair agree in the end, for random faults and operators with stale
//! views, and no worker is passed over by a spare that may have nothing.

use std::collections::HashMap;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_contract::{Action as Instruction, CopyRole};
use roundhouse_planner::generation::beside::newest_formed;
use roundhouse_planner::generation::members::Members;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::worker_state::{is_alive, may_hold_state};
use roundhouse_planner::{Action, Observed, Plan, PlanReason, Pod, PodPhase, plan};

use super::report;

#[derive(Clone, Debug)]
enum Event {
    /// The operator plans with the present state, and stops after this number of writes.
    Reconcile(usize),
    /// An operator with a stale view reads the state.
    Sees,
    /// It plans with that view, and does these of its writes.
    Stale(u64),
    /// A pod is created on a node and its processes are prepared.
    Prepared(usize),
    Dies(usize),
    Restarts(usize),
    Vanishes(usize),
    Ready(usize, bool),
    CutOff(usize, bool),
    /// Rank 0 reports, and whether its holder answers.
    Reports(bool),
    Spares(u32),
    Seconds(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pod = 0..5_usize;
    let event = prop_oneof![
        8 => prop_oneof![1 => 0..3_usize, 4 => Just(usize::MAX)].prop_map(Event::Reconcile),
        1 => Just(Event::Sees),
        2 => prop_oneof![any::<u64>(), Just(u64::MAX)].prop_map(Event::Stale),
        6 => pod.clone().prop_map(Event::Prepared),
        2 => pod.clone().prop_map(Event::Dies),
        3 => pod.clone().prop_map(Event::Restarts),
        1 => pod.clone().prop_map(Event::Vanishes),
        2 => (pod.clone(), any::<bool>()).prop_map(|(at, is)| Event::Ready(at, is)),
        1 => (pod, any::<bool>()).prop_map(|(at, is)| Event::CutOff(at, is)),
        6 => prop_oneof![3 => Just(true), 1 => Just(false)].prop_map(Event::Reports),
        1 => (1..3_u32).prop_map(Event::Spares),
        2 => prop_oneof![Just(5), Just(40)].prop_map(Event::Seconds),
    ];
    collection::vec(event, 1..160)
}

/// The world, and what only the pods know.
struct Walk {
    world: World,
    /// The view of another operator.
    stale: Observed,
    num_plans: u32,
    /// The newest formed generation of whose state a pod has a copy that it wrote, by UID.
    own: HashMap<String, u64>,
    /// The same of copies that it holds for another pod.
    held: HashMap<String, u64>,
}

impl Walk {
    fn of(workers: u32, spares: u32) -> Self {
        let mut world = world(workers);
        (world.job.spares, world.job.min_replicas) = (spares, 1);
        world.job.backoff_limit = 100_000;
        world.has_peer_copies();
        Self {
            stale: world.observed.clone(),
            world,
            num_plans: 0,
            own: HashMap::new(),
            held: HashMap::new(),
        }
    }

    /// A plan with a nonce of its own.
    fn plan(&mut self, view: Option<Observed>) -> (Observed, Plan) {
        self.num_plans += 1;
        let mut seen = view.unwrap_or_else(|| self.world.observed.clone());
        seen.nonce = format!("{:032}", self.num_plans);
        let plan = plan(&self.world.job, &seen, self.world.now);
        check_writes(&seen, &plan);
        (seen, plan)
    }

    fn reconcile(&mut self, writes: usize) -> PlanReason {
        let (_, plan) = self.plan(None);
        if plan.reason == PlanReason::RaisingGeneration {
            self.no_worker_is_passed_over();
        }
        self.world.carry_out(&plan, writes);
        plan.reason
    }

    /// If no member of the next generation has the newest known state or a copy of it, no pod with
    /// such a copy is about to return.
    fn no_worker_is_passed_over(&self) {
        let Observed { pods, .. } = &self.world.observed;
        let formed = newest_formed(&self.world.observed, self.world.generation());
        let next = Members::of(&self.world.job, &self.world.observed, self.world.now).able();
        let known = |all: &HashMap<String, u64>, pod: &Pod| all.get(&pod.uid) == Some(&formed);
        let has_it =
            |pod: &&Pod| may_hold_state(pod) || known(&self.own, pod) || known(&self.held, pod);
        if formed == 0 || next.iter().any(has_it) {
            return;
        }
        for pod in pods.iter().filter(|pod| known(&self.own, pod)) {
            let end = pod.container.termination.as_ref();
            let since = end.and_then(|end| end.finished_at).max(pod.ready_at);
            let is_recent =
                since.is_some_and(|at| self.world.now.duration_since(at).as_secs() < 300);
            let returns = pod.phase == PodPhase::Running && !pod.unreachable && !pod.ready;
            assert!(!(returns && is_recent), "{} is passed over", pod.name);
        }
    }

    /// Whether all members of the newest generation live and can be reached; then its number.
    fn trains(&self) -> Option<u64> {
        let newest = self.world.observed.status.membership.as_ref()?;
        let members = self.world.observed.pods.iter().filter(|pod| {
            let document = pod.membership.as_ref();
            let is_of = document.is_some_and(|it| {
                it.generation == newest.generation && it.action == Instruction::Join
            });
            is_of && is_alive(pod) && !pod.unreachable
        });
        (members.count() == newest.nodes as usize).then_some(newest.generation)
    }

    /// Rank 0 reports that its generation has formed and what its holder has.
    fn reports(&mut self, answers: bool) {
        let Some(generation) = self.trains() else {
            return;
        };
        let observed = &self.world.observed;
        let members = observed.pods.iter().filter_map(|pod| {
            let document = pod.membership.as_ref()?;
            (document.generation == generation).then_some((pod, document.node_rank))
        });
        let members: Vec<(&Pod, u32)> = members.collect();
        for (pod, _) in &members {
            self.own.insert(pod.uid.clone(), generation);
        }
        let first = members.iter().find(|(_, rank)| *rank == 0);
        let pair = first.and_then(|(pod, _)| pod.copies.as_ref());
        let pair = pair.filter(|pair| pair.role == CopyRole::Worker && answers);
        let holder = pair.and_then(|pair| {
            let mut pods = observed.pods.iter();
            pods.find(|pod| {
                let document = pod.copies.as_ref();
                let is_pair =
                    document.is_some_and(|it| it.role == CopyRole::Holder && it.id == pair.id);
                is_pair && pod.name == pair.peer && pod.ready && !pod.unreachable
            })
        });
        if let Some(holder) = holder {
            self.held.insert(holder.uid.clone(), generation);
        }
        let held = pair.filter(|_| holder.is_some()).cloned();
        report(&mut self.world, generation, held.as_ref());
    }

    fn happen(&mut self, event: &Event) {
        let world = &mut self.world;
        let pod = |at: usize| world.observed.pods.get(at).cloned();
        match *event {
            Event::Reconcile(writes) => {
                self.reconcile(writes);
            }
            Event::Sees => self.stale = world.observed.clone(),
            Event::Stale(writes) => {
                let (seen, plan) = self.plan(Some(self.stale.clone()));
                let mut is_done = true;
                for (at, action) in (0_u32..).zip(&plan.actions) {
                    let is_made = writes.checked_shr(at).is_some_and(|bits| bits & 1 == 1);
                    is_done &= is_made && self.world.act(action);
                }
                if is_done && self.world.observed.status == seen.status {
                    self.world.observed.status = plan.status;
                }
            }
            Event::Prepared(at) => {
                if pod(at).is_some_and(|pod| !pod.ready && !pod.unreachable && !has_ended(&pod)) {
                    prepare(world, at);
                }
            }
            Event::Dies(at) => {
                if pod(at).is_some_and(|pod| pod.phase == PodPhase::Running && !has_ended(&pod)) {
                    world.ends(at, 137, 12);
                }
            }
            Event::Restarts(at) => {
                if pod(at).is_some_and(|pod| has_ended(&pod) && !pod.unreachable) {
                    world.restarts(at);
                }
            }
            Event::Vanishes(at) => world.vanishes(at),
            Event::Ready(at, is) => {
                let runs = |pod: Pod| pod.phase == PodPhase::Running && !pod.unreachable;
                if pod(at).is_some_and(|pod| !has_ended(&pod) && runs(pod)) {
                    world.is_ready(at, is);
                }
            }
            Event::CutOff(at, is) => {
                let can = |pod: Pod| pod.phase == PodPhase::Running && !has_ended(&pod);
                if pod(at).is_some_and(can) {
                    world.is_unreachable(at, is);
                }
            }
            Event::Reports(answers) => self.reports(answers),
            Event::Spares(spares) => world.job.spares = spares,
            Event::Seconds(seconds) => world.seconds_pass(seconds),
        }
    }

    /// From now on nothing fails.
    fn recovers(&mut self) {
        for _ in 0..8 {
            self.world.seconds_pass(301);
            for at in 0..self.world.observed.pods.len() {
                let pod = self.world.observed.pods[at].clone();
                if has_ended(&pod) {
                    self.world.restarts(at);
                }
                self.world.is_unreachable(at, false);
                prepare(&mut self.world, at);
            }
            for _ in 0..12 {
                self.reconcile(usize::MAX);
            }
            self.reports(true);
        }
        let rest = self.world.settle();
        assert_eq!(
            rest.reason,
            PlanReason::Training,
            "{:?}",
            self.world.observed
        );
    }
}

fn prepare(world: &mut World, at: usize) {
    let pod = &mut world.observed.pods[at];
    // Three nodes for all pods.
    let node = format!("n{}", pod.index.unwrap_or(0) % 3);
    pod.node.get_or_insert(node);
    let address = format!("10.0.1.{}", pod.uid);
    pod.ip.get_or_insert(address);
    world.prepared(at);
}

fn has_ended(pod: &Pod) -> bool {
    let end = pod.container.termination.as_ref();
    end.is_some_and(|end| end.restarts == pod.container.restarts)
}

/// A holder is no member, and on another node than its worker, in the view of the operator.
fn check_writes(seen: &Observed, plan: &Plan) {
    let find = |name: &str| seen.pods.iter().find(|pod| pod.name == name);
    let generation = seen
        .status
        .membership
        .as_ref()
        .map_or(0, |it| it.generation);
    for action in &plan.actions {
        let Action::PairCopies { pod, pair, .. } = action else {
            continue;
        };
        assert_ne!(find(pod).unwrap().copies, *pair, "the document was there");
        let Some(pair) = pair else { continue };
        let (holder, worker) = match pair.role {
            CopyRole::Holder => (pod, &pair.peer),
            CopyRole::Worker => (&pair.peer, pod),
        };
        let (holder, worker) = (find(holder).unwrap(), find(worker).unwrap());
        assert_ne!(holder.node, worker.node, "one node");
        let place = holder.membership.as_ref().filter(|_| is_alive(holder));
        assert!(
            place.is_none_or(|it| it.generation < generation),
            "a member holds copies"
        );
    }
}

/// There is a pair if a spare can be its holder, and its documents agree.
fn check_pair(world: &World) {
    let pods = &world.observed.pods;
    let newest = world.generation();
    let rank = |pod: &Pod| {
        let document = pod.membership.as_ref().filter(|_| is_alive(pod))?;
        (document.generation == newest).then_some(document.node_rank)
    };
    let worker = pods.iter().find(|pod| rank(pod) == Some(0)).unwrap();
    let could_hold = |pod: &&Pod| rank(pod).is_none() && pod.ready && pod.node != worker.node;
    for pod in pods {
        let is_worker = pod
            .copies
            .as_ref()
            .is_some_and(|it| it.role == CopyRole::Worker);
        assert!(
            pod.uid == worker.uid || !is_worker,
            "{} sends copies",
            pod.name
        );
        assert!(
            is_worker || rank(pod).is_none() || pod.copies.is_none(),
            "a member holds copies"
        );
    }
    let Some(pair) = &worker.copies else {
        assert!(
            pods.iter().find(could_hold).is_none(),
            "no holder: {pods:?}"
        );
        return;
    };
    let holder = pods.iter().find(|pod| pod.name == pair.peer).unwrap();
    assert!(could_hold(&holder));
    let document = holder.copies.as_ref().unwrap();
    assert_eq!(document.role, CopyRole::Holder);
    assert_eq!((&document.id, &document.peer), (&pair.id, &worker.name));
    assert_eq!(
        (Some(&document.address), Some(&pair.address)),
        (worker.ip.as_ref(), holder.ip.as_ref())
    );
    assert_eq!(document.generation, newest, "it has the newest copy");
    let num_holders = pods.iter().filter(|pod| pod.copies.is_some()).count();
    assert_eq!(num_holders, 2, "{pods:?}");
}

proptest! {
    #[test]
    fn documents_of_a_pair_agree_and_no_worker_is_passed_over(
        workers in 1..3_u32, spares in 1..3_u32, events in events(),
    ) {
        let mut walk = Walk::of(workers, spares);
        for event in &events {
            walk.happen(event);
        }
        walk.recovers();
        check_pair(&walk.world);
    }
}
