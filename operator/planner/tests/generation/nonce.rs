//! The nonce of a generation, which its members share.

use roundhouse_planner::testing::{World, world};

/// The next plans are of another moment, or of another operator.
fn draws(world: &mut World, nonce: &str) {
    nonce.clone_into(&mut world.observed.nonce);
}

fn stored(world: &World) -> &str {
    &world.observed.status.membership.as_ref().unwrap().nonce
}

/// What each pod was told.
fn told(world: &World) -> Vec<&str> {
    let documents = world
        .observed
        .pods
        .iter()
        .filter_map(|pod| pod.membership.as_ref());
    documents.map(|document| document.nonce.as_str()).collect()
}

#[test]
fn all_members_of_a_generation_get_the_nonce_it_was_raised_with_wherever_the_operator_stops() {
    let mut world = world(3).lobby();
    draws(&mut world, "aa");
    let raises = world.plan();
    world.carry_out(&raises, usize::MAX);
    assert_eq!(stored(&world), "aa", "before anybody hears of it");
    for nonce in ["bb", "cc"] {
        draws(&mut world, nonce);
        let issues = world.plan();
        world.carry_out(&issues, 1);
    }
    draws(&mut world, "dd");
    world.settle();
    assert_eq!((stored(&world), told(&world)), ("aa", vec!["aa"; 3]));
}

#[test]
fn each_generation_has_a_nonce_of_its_own() {
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
fn a_generation_that_an_older_operator_raised_is_issued_without_a_nonce() {
    let mut world = world(2).lobby();
    let raises = world.plan();
    world.carry_out(&raises, usize::MAX);
    let membership = world.observed.status.membership.as_mut();
    membership.unwrap().nonce.clear();
    draws(&mut world, "bb");
    world.settle();
    assert_eq!(told(&world), ["", ""]);
    let first = world.observed.pods[0].membership.as_ref().unwrap();
    assert!(!first.to_json().unwrap().contains("nonce"));
}
