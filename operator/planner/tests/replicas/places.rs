//! Which pods form a replica, and which generations replicas form.

use roundhouse_api::Gang;
use roundhouse_contract::{Action as Instruction, Progress, Straggler};
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{Action, DeleteReason, ProgressSample, validate};
use serde_json::json;

use super::cluster::Cluster;

#[test]
fn replicas_of_two_pods_train_together() {
    let cluster = Cluster::training(2, 1);
    assert_eq!(
        [cluster.replica(0), cluster.replica(1)].concat(),
        [
            "digits-worker-0-0",
            "digits-worker-1-0",
            "digits-worker-2-0",
            "digits-worker-3-0"
        ]
    );
    for (place, name) in (0..).zip([cluster.replica(0), cluster.replica(1)].concat()) {
        let pod = cluster.pod(&name);
        let document = pod.membership.as_ref().unwrap();
        assert_eq!(
            (document.node_rank, document.nodes, document.generation),
            (place, 4, 1)
        );
        assert_eq!(document.procs_per_worker, 1);
        assert_eq!(document.life, pod.replica.as_ref().unwrap().life);
        assert_eq!(
            document.master.address,
            cluster.pod("digits-worker-0-0").ip.clone().unwrap()
        );
    }
    let spare = cluster.pod("digits-worker-4-0");
    assert!(spare.replica.is_none() && spare.membership.is_none() && !spare.ready);
    let status = &cluster.world.observed.status;
    let workers = status.workers.as_ref().unwrap();
    assert_eq!(
        (workers.wanted, workers.ready, workers.spares, workers.pods),
        (2, 2, 1, 5)
    );
    assert_eq!(status.replicas, 2);
    let membership = status.membership.as_ref().unwrap();
    assert_eq!((membership.nodes, membership.world_size), (2, 4));
    let accepted = &status.conditions[0].message;
    assert!(
        accepted.starts_with("2 replicas of 2 pods with 1 process per pod"),
        "{accepted}"
    );
}

#[test]
fn replica_waits_for_its_last_pod() {
    let mut cluster = Cluster::of(2, 0);
    cluster.step();
    for name in [
        "digits-worker-0-0",
        "digits-worker-2-0",
        "digits-worker-3-0",
    ] {
        let at = cluster.at(name);
        cluster.world.prepared(at);
        cluster.world.observed.pods[at].ready = false;
    }
    cluster.step();
    assert!(cluster.replica(0).is_empty());
    assert_eq!(
        cluster.replica(1),
        ["digits-worker-2-0", "digits-worker-3-0"]
    );
    cluster.agents_work();
    assert!(cluster.pod("digits-worker-2-0").ready);
    cluster.settle();
    assert_eq!(cluster.num_replicas(), 2);
}

#[test]
fn spare_takes_the_place_of_a_lost_pod() {
    let mut cluster = Cluster::training(2, 1);
    cluster.is_cut_off("digits-worker-1-0", true);
    cluster.settle();
    // Only the operator does not reach it: the process of the other pod still trains with it.
    let places = ["digits-worker-0-0", "digits-worker-1-0"];
    assert_eq!(cluster.replica(0), places);
    cluster.process_loses_peer("digits-worker-0-0");
    cluster.settle();
    assert_eq!(
        cluster.replica(0),
        ["digits-worker-0-0", "digits-worker-4-0"]
    );
    let workers = cluster.world.observed.status.workers.clone().unwrap();
    assert_eq!((workers.ready, workers.spares), (2, 0));
    assert_eq!(cluster.num_replicas(), 2);
    // The node returns before its pod is replaced.
    cluster.is_cut_off("digits-worker-1-0", false);
    cluster.settle();
    assert_eq!(
        cluster.replica(0),
        ["digits-worker-0-0", "digits-worker-4-0"]
    );
    let back = cluster.pod("digits-worker-1-0");
    assert!(!back.deleting, "it is the spare now");
    assert_eq!(cluster.agents[&back.uid].life, None);
}

#[test]
fn replica_that_is_cut_off_as_a_whole_keeps_its_places() {
    for replicas in [1, 2] {
        let mut cluster = Cluster::training(replicas, 2);
        let pods = (0..replicas * 2).map(|index| format!("digits-worker-{index}-0"));
        let pods: Vec<String> = pods.collect();
        for pod in &pods {
            cluster.is_cut_off(pod, true);
        }
        // They train on where the operator does not see it, and spares must not begin beside them.
        cluster.settle();
        assert_eq!(cluster.world.generation(), 1);
        assert_eq!(cluster.replica(0), pods[..2]);
        assert_eq!(cluster.formed(), [1]);
        for pod in &pods {
            cluster.is_cut_off(pod, false);
        }
        cluster.settle();
        assert_eq!(cluster.world.state(), "Training");
    }
}

#[test]
fn deleted_pod_is_created_again_in_its_replica() {
    let mut cluster = Cluster::training(2, 0);
    cluster.vanishes("digits-worker-2-0");
    cluster.settle();
    assert_eq!(
        cluster.replica(1),
        ["digits-worker-2-0", "digits-worker-3-0"]
    );
    let status = &cluster.world.observed.status;
    assert_eq!(status.replacements.total, 1);
    assert_eq!(status.membership.as_ref().unwrap().nodes, 2);
}

#[test]
fn scale_down_removes_whole_replicas_and_incomplete_ones_first() {
    let mut cluster = Cluster::training(3, 0);
    cluster.vanishes("digits-worker-1-0");
    cluster.world.job.replicas = 2;
    let plan = cluster.step();
    let deleted = |plan: &roundhouse_planner::Plan| {
        let deleted = plan.actions.iter().filter_map(|action| match action {
            Action::DeletePod { pod, reason, .. } => Some((pod.clone(), *reason)),
            _ => None,
        });
        deleted.collect::<Vec<_>>()
    };
    let mut found = deleted(&plan);
    while found.is_empty() {
        found = deleted(&cluster.step());
    }
    let expected = [("digits-worker-0-0".to_owned(), DeleteReason::ScaledDown)];
    assert_eq!(found, expected, "the replica without a pod goes");
    cluster.settle();
    assert_eq!(cluster.world.observed.pods.len(), 4);
    cluster.world.job.replicas = 1;
    cluster.settle();
    assert_eq!(cluster.world.observed.pods.len(), 2);
    assert_eq!(cluster.num_replicas(), 1);
    cluster.world.job.replicas = 3;
    cluster.settle();
    assert_eq!(cluster.world.observed.pods.len(), 6);
    assert_eq!(cluster.num_replicas(), 3);
}

#[test]
fn suspension_deletes_all_pods_and_spares() {
    let mut cluster = Cluster::training(2, 1);
    cluster.world.job.suspend = true;
    cluster.settle();
    assert!(cluster.world.observed.pods.is_empty());
    cluster.world.job.suspend = false;
    cluster.settle();
    assert_eq!(cluster.world.state(), "Training");
    assert_eq!(cluster.world.observed.pods.len(), 5);
}

#[test]
fn drained_pod_takes_its_replica_out_at_a_step_boundary() {
    let mut cluster = Cluster::training(2, 0);
    cluster.world.lingering = true;
    let at = cluster.at("digits-worker-1-0");
    cluster.world.is_deleted(at);
    // The next generation is raised and issued.
    while cluster.world.generation() < 2 {
        cluster.step();
    }
    cluster.step();
    for name in ["digits-worker-0-0", "digits-worker-1-0"] {
        let document = cluster.pod(name).membership.as_ref().unwrap();
        assert_eq!(
            (document.generation, document.action),
            (2, Instruction::Leave),
            "{name}"
        );
    }
    let stays = cluster
        .pod("digits-worker-2-0")
        .membership
        .as_ref()
        .unwrap();
    assert_eq!((stays.generation, stays.nodes, stays.node_rank), (2, 2, 0));
    let life = |cluster: &Cluster| {
        cluster
            .pod("digits-worker-0-0")
            .replica
            .clone()
            .unwrap()
            .life
    };
    let before = life(&cluster);
    cluster.step();
    assert_eq!(
        life(&cluster),
        before,
        "it leaves before another life begins"
    );
    cluster.agents_work();
    cluster.vanishes("digits-worker-1-0");
    cluster.world.lingering = false;
    cluster.settle();
    assert_ne!(life(&cluster), before);
    let status = &cluster.world.observed.status;
    assert_eq!(status.membership.as_ref().unwrap().nodes, 2);
    assert_eq!(status.incidents.total, 0);
}

#[test]
fn replicas_that_each_lack_a_pod_are_put_together() {
    let mut cluster = Cluster::training(2, 0);
    cluster.vanishes("digits-worker-0-0");
    cluster.vanishes("digits-worker-3-0");
    // There is no room for other pods.
    for _ in 0..10 {
        cluster.agents_work();
        cluster.step();
        cluster.world.seconds_pass(10);
    }
    assert_eq!(
        cluster.replica(0),
        ["digits-worker-2-0", "digits-worker-1-0"]
    );
    let membership = cluster.world.observed.status.membership.clone().unwrap();
    assert_eq!((cluster.world.state(), membership.nodes), ("Training", 1));
}

#[test]
fn scale_down_removes_the_replica_of_the_straggler() {
    let mut cluster = Cluster::training(3, 0);
    let progress = Progress {
        generation: 1,
        step: 40,
        // The second pod of the second replica.
        straggler: Some(Straggler {
            node_rank: 3,
            factor: 2.3,
        }),
        ..Progress::default()
    };
    let at = cluster.world.now;
    cluster.world.observed.progress = Some(ProgressSample { progress, at });
    cluster.world.job.replicas = 2;
    cluster.settle();
    assert!(cluster.replica(1).is_empty());
    assert_eq!(cluster.world.observed.pods.len(), 4);
}

#[test]
fn gang_needs_all_pods_of_the_fewest_replicas() {
    let mut cluster = Cluster::of(3, 1);
    cluster.world.job.scheduling.gang = Gang::Volcano;
    cluster.world.job.min_replicas = 2;
    let plan = cluster.world.plan();
    let group = plan.actions.iter().find_map(|action| match action {
        Action::ApplyPodGroup { group, .. } => Some(group.min_member),
        _ => None,
    });
    assert_eq!(group, Some(4));
}

#[test]
fn processes_of_all_pods_hold_the_model() {
    let job = |tensor: u32| {
        let mut raw = raw_job(2);
        raw.spec.workers.pods_per_replica = Some(2);
        raw.spec.workers.procs_per_worker = Some(2);
        let trainer = raw.spec.trainer.as_mut().unwrap();
        trainer.model = serde_json::from_value(json!({
            "name": "gpt2", "layers": 2, "width": 48, "heads": 12, "context": 16, "vocabulary": 64,
        }))
        .unwrap();
        trainer.data =
            serde_json::from_value(json!({"format": "tokens", "tokens": {"context": 16}})).unwrap();
        trainer.parallel = serde_json::from_value(json!({ "tensor": tensor })).unwrap();
        trainer.optimizer =
            serde_json::from_value(json!({"name": "adamw", "learningRate": 0.001})).unwrap();
        validate(&raw)
    };
    assert_eq!(job(4).unwrap().procs_per_replica(), 4);
    let error = job(2).unwrap_err();
    assert_eq!(error.field, "spec.trainer.parallel.tensor");
    assert!(
        error.message.contains("so that their product is 2"),
        "{error}"
    );
}

/// Three pods per replica. Two replicas have lost two each, and one spare runs: together they are
/// one replica.
#[test]
fn spare_joins_replicas_that_are_put_together() {
    let mut cluster = Cluster::of(2, 1);
    cluster.world.job.pods_per_replica = 3;
    cluster.step();
    for index in 0..7 {
        let at = cluster.at(&format!("digits-worker-{index}-0"));
        cluster.world.prepared(at);
        cluster.world.observed.pods[at].ready = false;
    }
    cluster.step();
    assert_eq!((cluster.replica(0).len(), cluster.replica(1).len()), (3, 3));
    for index in [1, 2, 4, 5] {
        cluster.vanishes(&format!("digits-worker-{index}-0"));
    }
    // There is no room for other pods.
    for round in 0..3 {
        cluster.world.observed.nonce = format!("{round:032x}");
        cluster.step();
    }
    let together = [
        "digits-worker-0-0",
        "digits-worker-6-0",
        "digits-worker-3-0",
    ];
    assert_eq!(cluster.replica(0), together);
}
