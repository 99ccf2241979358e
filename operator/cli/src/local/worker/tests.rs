use roundhouse_contract::{Incarnation, Master};

use super::*;

const GRACE: Duration = Duration::from_secs(600);

#[test]
fn a_worker_that_leaves_says_until_when_it_may_be_waited_for() {
    let mut worker = Worker::idle("digits-worker-0-0".to_owned(), (0, 0), 1, GRACE);
    assert_eq!(worker.observed().gone_by, None);
    let before = Timestamp::now();
    worker.delete();
    let gone_by = worker.observed().gone_by.unwrap();
    assert!(gone_by >= before + GRACE && gone_by <= Timestamp::now() + GRACE);
    worker.delete();
    assert_eq!(worker.observed().gone_by, Some(gone_by), "once");
    worker.kill();
    assert!(worker.observed().gone_by.unwrap() <= Timestamp::now());
}

#[test]
fn a_worker_that_is_told_to_leave_leads_nobody() {
    let mut worker = Worker::idle("digits-worker-0-0".to_owned(), (0, 0), 1, GRACE);
    let document = |action| Membership {
        nonce: String::new(),
        generation: 3,
        action,
        node_rank: 0,
        nodes: 1,
        procs_per_worker: 1,
        master: Master {
            address: String::new(),
            port: 1,
        },
        members: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
        repeats: 0,
    };
    worker.membership = Some(document(Action::Join));
    assert_eq!(worker.leads(), Some(3));
    worker.membership = Some(document(Action::Leave));
    assert_eq!(worker.leads(), None);
}
