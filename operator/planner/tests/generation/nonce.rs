//! The nonce of a generation, which its members share.

use roundhouse_planner::testing::{World, world};

/// The next plans have another nonce, as of another time or another operator.
fn draws(world: &mut World, nonce: &str) {
    nonce.clone_into(&mut world.observed.nonce);
}

fn stored(world: &World) -> &str {
    &world.observed.status.membership.as_ref().unwrap().nonce
}

/// The nonce in each pod's membership.
fn issued(world: &World) -> Vec<&str> {
    let documents = world
        .observed
        .pods
        .iter()
        .filter_map(|pod| pod.membership.as_ref());
    documents.map(|document| document.nonce.as_str()).collect()
}

#[test]
fn members_share_the_stored_nonce_across_restarts() {
    let mut world = world(3).lobby();
    draws(&mut world, "aa");
    let raises = world.plan();
    world.carry_out(&raises, usize::MAX);
    assert_eq!(stored(&world), "aa", "before it is issued");
    for nonce in ["bb", "cc"] {
        draws(&mut world, nonce);
        let issues = world.plan();
        world.carry_out(&issues, 1);
    }
    draws(&mut world, "dd");
    world.settle();
    assert_eq!((stored(&world), issued(&world)), ("aa", vec!["aa"; 3]));
}

#[test]
fn each_generation_has_its_own_nonce() {
    let mut world = world(2).training();
    draws(&mut world, "bb");
    world.is_deleted(1);
    world.settle();
    world.prepared(2);
    world.settle();
    assert_eq!(stored(&world), "bb");
    assert_eq!(world.generation(), 2);
}

#[test]
fn generation_of_an_older_operator_has_no_nonce() {
    let mut world = world(2).lobby();
    let raises = world.plan();
    world.carry_out(&raises, usize::MAX);
    let membership = world.observed.status.membership.as_mut();
    membership.unwrap().nonce.clear();
    draws(&mut world, "bb");
    world.settle();
    assert_eq!(issued(&world), ["", ""]);
    let first = world.observed.pods[0].membership.as_ref().unwrap();
    assert!(!first.to_json().unwrap().contains("nonce"));
}
