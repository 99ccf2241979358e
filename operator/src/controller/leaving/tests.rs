use roundhouse_contract::Membership;
use roundhouse_contract::membership::{Action, Incarnation, Master};

use super::*;
use crate::controller::resources::network_policy::Peers;

fn pod(name: &str, deleting: bool) -> Pod {
    Pod {
        name: name.to_owned(),
        uid: format!("uid of {name}"),
        phase: PodPhase::Running,
        ours: true,
        deleting,
        ..Pod::default()
    }
}

fn made(names: &[&str]) -> Next {
    let owner = |name: &&str| ((*name).to_owned(), format!("uid of {name}"));
    Next::Create(names.iter().map(owner).collect())
}

#[test]
fn policy_is_created_once_terminating_workers_are_known() {
    let (leaves, stays) = (pod("a", true), pod("b", false));
    let next = |pods: &[&Pod], before| next(pods.iter().copied(), before);
    assert_eq!(next(&[], 0), Next::Nothing);
    assert_eq!(next(&[&stays], 0), Next::Wait { leaving: 0 });
    assert_eq!(next(&[&leaves, &stays], 0), Next::Wait { leaving: 1 });
    assert_eq!(next(&[&leaves, &stays], 1), made(&["a"]), "no more do");
    let also = pod("b", true);
    assert_eq!(next(&[&leaves, &also], 0), made(&["a", "b"]));
    for without in [
        Pod {
            phase: PodPhase::Succeeded,
            ..pod("c", true)
        },
        Pod {
            unreachable: true,
            ..pod("c", true)
        },
        Pod {
            ours: false,
            ..pod("c", true)
        },
    ] {
        assert_eq!(next(&[&without], 0), Next::Nothing, "{without:?}");
        assert_eq!(next(&[&leaves, &without], 0), made(&["a"]));
    }
}

#[test]
fn few_pods_own_a_policy_and_rank_0_is_one_of_them() {
    let place = |node_rank: u32| Membership {
        life: String::new(),
        generation: 1,
        action: Action::Join,
        node_rank,
        nodes: 100,
        procs_per_worker: 1,
        master: Master {
            address: "10.0.0.1".to_owned(),
            port: 1,
        },
        members: String::new(),
        nonce: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
        repeats: 0,
    };
    let mut pods: Vec<Pod> = (0..100).map(|at| pod(&format!("p{at:02}"), true)).collect();
    pods[99].membership = Some(place(0));
    pods[98].membership = Some(place(1));
    let Next::Create(owners) = next(pods.iter(), 0) else {
        panic!("all leave");
    };
    let names: Vec<&str> = owners.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names[..3], ["p99", "p98", "p00"]);
    assert_eq!(names.len(), MAX_OWNERS);
}

#[test]
fn policy_of_terminating_workers_has_the_rules_of_their_job() {
    let job = JobIdentity {
        namespace: "ml".to_owned(),
        name: "digits".to_owned(),
        uid: "0a1b2c3d-4e5f".to_owned(),
    };
    let owners = [("a".to_owned(), "u".to_owned())];
    let peers = Peers::default();
    let policy = network_policy::build_leaving(&job, &peers, &owners);
    let own = network_policy::build(&job, &peers);
    assert_eq!(policy.spec, own.spec);
    assert_eq!(policy.metadata.labels, own.metadata.labels);
    assert_eq!(policy.metadata.name.unwrap(), "digits-leaving-0a1b2c3d");
    let [owner] = &policy.metadata.owner_references.unwrap()[..] else {
        panic!("there is one pod");
    };
    assert_eq!((&*owner.kind, &*owner.name, &*owner.uid), ("Pod", "a", "u"));
    // Without a controller no controller adopts it, and the operator never takes it for the job's
    // own.
    assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
}

#[test]
fn one_namespace_leaves_places_to_others() {
    let places = Places::default();
    let mut of_one: Vec<Place<'_>> = (0..OF_ONE_NAMESPACE)
        .map(|_| places.take("a").unwrap())
        .collect();
    assert!(places.take("a").is_none());
    assert!(places.take("b").is_some());
    of_one.pop();
    assert!(places.take("a").is_some());
    drop(of_one);
    assert!(places.lock().is_empty());
}
