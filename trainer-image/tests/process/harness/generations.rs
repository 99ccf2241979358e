//! Publishes generations to the processes, as the operator does.

use roundhouse_contract::Phase;
use roundhouse_contract::membership::{Action, Incarnation, Master, Membership};

use super::{Job, replace};

impl Job {
    /// Waits until all processes are in the lobby, then publishes a generation of all workers.
    pub(crate) fn issue_when_ready(&self, generation: u64) {
        self.wait_for("all processes in the lobby", |status| {
            status.phase.is_ready()
        });
        self.issue(generation);
    }

    /// Publishes a generation of all workers.
    pub(crate) fn issue(&self, generation: u64) {
        self.issue_to(generation, &(0..self.nodes).collect::<Vec<_>>());
    }

    /// Publishes a membership that makes a worker leave.
    pub(crate) fn dismiss(&self, generation: u64, node: u32) {
        self.write(generation, node, Action::Leave, 0, &[node]);
    }

    /// Publishes a generation of some workers, in node-rank order.
    pub(crate) fn issue_to(&self, generation: u64, members: &[u32]) {
        self.publish(generation, members, members);
    }

    /// Publishes a generation to some of its members only.
    pub(crate) fn publish(&self, generation: u64, members: &[u32], recipients: &[u32]) {
        for (place, node) in (0..)
            .zip(members)
            .filter(|(_, node)| recipients.contains(node))
        {
            self.write(generation, *node, Action::Join, place, members);
        }
    }

    /// Publishes a generation of some workers, and waits until they have trained `steps` steps in
    /// it.
    pub(crate) fn passes(&self, generation: u64, members: &[u32], steps: u64) {
        self.issue_to(generation, members);
        self.wait_for_nodes(members, "a step of the generation", |status| {
            status.generation == generation && status.phase == Phase::Training
        });
        let at = self.status(members[0], 0).unwrap().step;
        self.wait_for_nodes(members, "more steps", |status| status.step > at + steps);
    }

    fn write(&self, generation: u64, node: u32, action: Action, place: u32, members: &[u32]) {
        let document = Membership {
            life: self.life_of(node),
            nonce: String::new(),
            generation,
            action,
            node_rank: place,
            nodes: u32::try_from(members.len()).unwrap(),
            procs_per_worker: self.procs_per_worker,
            master: Master {
                address: self.ip_of(members[0]),
                port: self.ports[members[0] as usize],
            },
            members: String::new(),
            incarnation: Incarnation {
                pod_uid: format!("worker-{node}"),
                restarts: 0,
            },
            issued_at: "2026-01-01T00:00:00Z".to_owned(),
            repeats: 0,
        };
        replace(&self.membership_file(node), &document.to_json().unwrap());
    }
}
