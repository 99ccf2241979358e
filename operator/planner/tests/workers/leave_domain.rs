//! Deleted pods on lost nodes release their topology domain.

use roundhouse_planner::testing::world;
use roundhouse_planner::{Action, Plan};

/// Kubernetes keeps a deleted pod on a node that does not answer, and the scheduler would place
/// new pods beside it.
#[test]
fn deleted_pod_on_a_lost_node_leaves_its_domain() {
    for has_topology in [true, false] {
        let mut world = world(2);
        world.job.scheduling.topology_key = has_topology.then(|| "rack".to_owned());
        let mut world = world.training();
        world.lingering = true;
        world.is_on(1, "n1");
        world.is_unreachable(1, true);
        let first = world.plan();
        let marks = |plan: &Plan| {
            let marks = |it: &&Action| matches!(it, Action::LeaveDomain { .. });
            plan.actions.iter().filter(marks).count()
        };
        assert_eq!(marks(&first), 0, "it may come back");
        world.seconds_pass(300);
        world.settle();
        let lost = world.observed.pods.iter().find(|pod| pod.unreachable);
        let lost = lost.unwrap();
        assert!(lost.deleting);
        assert_eq!(lost.left_domain, has_topology);
        let others = world.observed.pods.iter().filter(|pod| !pod.unreachable);
        assert!(others.clone().all(|pod| !pod.left_domain));
        assert_eq!(marks(&world.plan()), 0, "once");
    }
}
