//! Pairs of a worker of one pod and the spare that holds second copies of its state
//! (`checkpoint.local.peerCopies`).

use roundhouse_contract::membership::fingerprint_of;
use roundhouse_contract::{CopyPair, CopyRole, HeldCopy, Progress};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, PlanReason, ProgressSample};

mod property;

/// Some workers train, and some spares wait, each pod on a node of its own. The second copies are
/// in spares.
fn with_holders(workers: u32, spares: u32) -> World {
    let mut world = world(workers);
    world.job.spares = spares;
    world.has_peer_copies();
    world.settle();
    for at in 0..world.observed.pods.len() {
        world.is_on(at, &format!("n{at}"));
        world.prepared(at);
    }
    world.observed.formed = Some(1);
    world
}

/// Rank 0 reports the copy of its holder, if the holder has one.
fn reports(world: &mut World, has_copy: bool) {
    let generation = world.generation();
    let pairs = world.observed.pods.iter();
    let pair = pairs.filter_map(|pod| pod.copies.as_ref());
    let pair = pair.clone().find(|it| it.role == CopyRole::Worker);
    let held = pair.filter(|_| has_copy).cloned();
    report(world, generation, held.as_ref());
}

/// Rank 0 of a generation reports a copy in the holder of its pair, if it has one.
fn report(world: &mut World, generation: u64, held: Option<&CopyPair>) {
    let held_copy = held.map(|pair| HeldCopy {
        pair: fingerprint_of(pair.id.as_bytes()),
        pod: pair.peer.clone(),
        generation,
        step: 50,
    });
    let progress = Progress {
        generation,
        step: 55,
        held_copy,
        ..Progress::default()
    };
    let at = world.now;
    world.observed.formed = Some(generation);
    world.observed.progress = Some(ProgressSample { progress, at });
}

/// One worker trains, and the holder is known to have a copy of its state.
fn held(spares: u32) -> World {
    let mut world = with_holders(1, spares);
    world.settle();
    reports(&mut world, true);
    world.settle();
    world
}

/// What the document of each pod says; empty without a document.
fn pairs(world: &World) -> Vec<String> {
    let documents = world.observed.pods.iter().map(|pod| pod.copies.as_ref());
    let shown = documents.map(|it| match it {
        None => String::new(),
        Some(it) if it.role == CopyRole::Worker => sends_to(&it.peer),
        Some(it) => holds_for(&it.peer, it.generation),
    });
    shown.collect()
}

fn holds_for(peer: &str, generation: u64) -> String {
    format!("holds a copy of generation {generation} for {peer}")
}

fn sends_to(peer: &str) -> String {
    format!("sends copies to {peer}")
}

/// The members of the newest generation, by position.
fn members(world: &World) -> Vec<usize> {
    let newest = world.generation();
    let pods = world.observed.pods.iter().enumerate();
    let is_member = pods.filter(|(_, pod)| {
        let document = pod.membership.as_ref();
        document.is_some_and(|it| it.generation == newest && it.incarnation == pod.incarnation())
    });
    is_member.map(|(at, _)| at).collect()
}

const FIRST: &str = "digits-worker-0-0";
const SECOND: &str = "digits-worker-1-0";
const THIRD: &str = "digits-worker-2-0";

#[test]
fn holder_gets_its_document_before_the_worker() {
    let mut world = with_holders(1, 1);
    let mut writes = Vec::new();
    for _ in 0..8 {
        let plan = world.plan();
        let written = plan.actions.iter().filter_map(|action| match action {
            Action::PairCopies { pod, pair, .. } => Some((pod.clone(), pair.clone())),
            _ => None,
        });
        writes.extend(written);
        world.carry_out(&plan, usize::MAX);
    }
    let names: Vec<&str> = writes.iter().map(|(pod, _)| pod.as_str()).collect();
    assert_eq!(names, [SECOND, FIRST], "each pod is written once");
    let documents: Vec<&CopyPair> = writes.iter().filter_map(|it| it.1.as_ref()).collect();
    assert_eq!(documents[0].id, documents[1].id);
    assert!(!documents[0].id.contains(&world.observed.nonce));
    assert_eq!(documents[0].address, "10.0.0.0");
    assert_eq!(documents[1].address, "10.0.0.1");
    assert_eq!(pairs(&world), [sends_to(SECOND), holds_for(FIRST, 0)]);
}

#[test]
fn operator_that_stops_between_the_two_writes_keeps_the_pair() {
    let mut world = with_holders(1, 1);
    while world.observed.pods[1].copies.is_none() {
        let plan = world.plan();
        world.carry_out(&plan, usize::MAX);
    }
    let id = world.observed.pods[1].copies.clone().unwrap().id;
    world.observed.nonce = "1".repeat(32);
    world.settle();
    let worker = world.observed.pods[0].copies.clone().unwrap();
    assert_eq!((worker.role, worker.id), (CopyRole::Worker, id));
}

#[test]
fn only_a_ready_spare_on_another_node_holds_copies() {
    type Change = fn(&mut World);
    let cases: [(&str, Change); 4] = [
        ("the same node", |world| world.is_on(1, "n0")),
        ("not Ready", |world| world.is_ready(1, false)),
        ("unreachable", |world| {
            world.is_unreachable(1, true);
            world.observed.pods[1].ready_at = Some(world.now);
        }),
        ("terminating", |world| {
            world.lingering = true;
            world.is_deleted(1);
        }),
    ];
    for (name, change) in cases {
        let mut world = held(1);
        change(&mut world);
        world.settle();
        let expected = [String::new(), holds_for(FIRST, 1)];
        assert_eq!(pairs(&world)[..2], expected, "{name}");
        let mut world = with_holders(1, 1);
        change(&mut world);
        world.settle();
        assert_eq!(pairs(&world)[..2], ["", ""], "{name}");
    }
}

#[test]
fn job_without_peer_copies_has_no_pairs() {
    let mut world = with_holders(1, 1);
    world.saves(true);
    world.settle();
    assert_eq!(pairs(&world), ["", ""]);
}

#[test]
fn document_of_the_holder_follows_the_reports() {
    let mut world = held(1);
    assert_eq!(pairs(&world)[1], holds_for(FIRST, 1));
    reports(&mut world, false);
    world.settle();
    assert_eq!(pairs(&world)[1], holds_for(FIRST, 0));
    reports(&mut world, true);
    let progress = world.observed.progress.as_mut().unwrap();
    progress.progress.held_copy.as_mut().unwrap().pair = "of another pair".to_owned();
    world.settle();
    assert_eq!(pairs(&world)[1], holds_for(FIRST, 0));
}

#[test]
fn holder_with_a_copy_replaces_a_dead_worker_at_once() {
    let mut world = held(1);
    world.ends(0, 137, 55);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![1]));
    // The former worker becomes the holder of the former holder.
    world.restarts(0);
    world.prepared(0);
    world.observed.formed = Some(2);
    world.settle();
    assert_eq!(pairs(&world), [holds_for(SECOND, 0), sends_to(FIRST)]);
}

#[test]
fn worker_is_not_passed_over_if_its_holder_may_have_nothing() {
    for never_had_it in [true, false] {
        let mut world = if never_had_it {
            let mut world = with_holders(1, 1);
            world.settle();
            world
        } else {
            let mut world = held(1);
            reports(&mut world, false);
            world.settle();
            world
        };
        world.ends(0, 137, 55);
        world.settle();
        assert_eq!((world.generation(), world.state()), (1, "Recovering"));
        world.restarts(0);
        world.prepared(0);
        world.settle();
        assert_eq!((world.generation(), members(&world)), (2, vec![0]));
    }
}

#[test]
fn worker_that_is_back_comes_before_its_holder() {
    let mut world = held(1);
    // The former holder becomes the worker: its index is higher than that of its holder.
    world.ends(0, 137, 55);
    world.settle();
    world.restarts(0);
    world.prepared(0);
    reports(&mut world, true);
    world.settle();
    reports(&mut world, true);
    world.settle();
    assert_eq!(pairs(&world), [holds_for(SECOND, 2), sends_to(FIRST)]);
    world.ends(1, 137, 60);
    world.restarts(1);
    world.prepared(1);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (3, vec![1]));
}

#[test]
fn new_worker_waits_for_a_holder_that_is_not_ready() {
    for (has_copy, generation) in [(true, 1), (false, 2)] {
        let mut world = held(2);
        reports(&mut world, has_copy);
        world.settle();
        assert_eq!(pairs(&world)[1], holds_for(FIRST, u64::from(has_copy)));
        world.is_ready(1, false);
        world.vanishes(0);
        world.settle();
        assert_eq!(world.generation(), generation, "{has_copy}");
        world.seconds_pass(301);
        world.settle();
        assert_eq!(world.generation(), 2, "the wait ends");
    }
}

#[test]
fn former_holder_keeps_its_document_until_another_has_a_copy() {
    let mut world = held(2);
    world.is_ready(1, false);
    world.settle();
    let paired = [sends_to(THIRD), holds_for(FIRST, 1), holds_for(FIRST, 0)];
    assert_eq!(pairs(&world), paired);
    world.is_ready(1, true);
    world.settle();
    assert_eq!(pairs(&world), paired, "the pair stays");
    reports(&mut world, true);
    world.settle();
    let its_copy_is_older = [sends_to(THIRD), String::new(), holds_for(FIRST, 1)];
    assert_eq!(pairs(&world), its_copy_is_older);
}

#[test]
fn holder_with_a_copy_stays_when_fewer_spares_are_wanted() {
    let mut world = held(2);
    world.is_ready(1, false);
    world.settle();
    reports(&mut world, true);
    world.is_ready(1, true);
    world.settle();
    world.job.spares = 1;
    world.settle();
    assert_eq!(pairs(&world), [sends_to(THIRD), holds_for(FIRST, 1)]);
}

#[test]
fn spare_that_becomes_a_member_holds_no_copies_any_more() {
    let mut world = held(1);
    (world.job.replicas, world.job.max_replicas) = (2, 2);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(members(&world), [0, 1]);
    assert_eq!(pairs(&world)[..2], ["", ""]);
    // It still has the copy of the generation before.
    assert_eq!(world.observed.pods[1].earlier[0].generation, 1);
}

/// The note about the copy is late, or a failed copy has removed it.
#[test]
fn spare_that_may_have_a_copy_comes_before_one_that_has_none() {
    for is_noted in [false, true] {
        let mut world = with_holders(1, 2);
        world.is_ready(1, false);
        world.settle();
        world.is_ready(1, true);
        if is_noted {
            reports(&mut world, true);
            world.settle();
        }
        reports(&mut world, false);
        world.settle();
        world.is_unreachable(0, true);
        world.vanishes(0);
        world.settle();
        let member = &world.observed.pods[members(&world)[0]];
        assert_eq!(member.index, Some(2), "{is_noted}");
    }
}

#[test]
fn job_says_that_no_spare_can_hold_copies() {
    let words = "no spare on another node is Ready to hold second copies";
    let message = |world: &World| world.observed.status.front().unwrap().message.clone();
    let mut world = with_holders(1, 1);
    assert!(!message(&world).contains(words), "{}", message(&world));
    world.observed.pods[1].node = world.observed.pods[0].node.clone();
    world.settle();
    assert!(message(&world).contains(words), "{}", message(&world));
}
