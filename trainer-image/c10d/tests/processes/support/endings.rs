//! Ranks over the fake NCCL whose groups are shut down, dropped or blocked.

use std::sync::Arc;

use roundhouse_c10d::{ErrorKind, ProcessGroup, ReduceOp, Store, fake_nccl_aborts};
use tch::Tensor;

use super::rank::{options, sum_of_ones};

/// Two generations: the first group is shut down when the second group has completed a collective.
pub fn switch(first: ProcessGroup, root: &Store) {
    assert_eq!(sum_of_ones(&first), f64::from(first.world_size()));
    let store = root.prefix("gen2").unwrap();
    let second = ProcessGroup::new(&store, first.rank(), first.world_size(), &options("gen2"));
    let second = second.unwrap();
    assert_eq!(sum_of_ones(&second), f64::from(first.world_size()));
    first.shutdown().unwrap();
    first.shutdown().unwrap();
    first.abort().unwrap();
    let mut tensor = Tensor::from_slice(&[1.0]);
    assert!(first.all_reduce(&mut tensor, ReduceOp::Sum).is_err());
    drop(first);
    assert_eq!(sum_of_ones(&second), f64::from(second.world_size()));
    second.shutdown().unwrap();
    drop(second);
    println!("aborts {}", fake_nccl_aborts());
}

/// Drops a group without a shutdown.
pub fn drop_without_shutdown(group: ProcessGroup) {
    assert_eq!(sum_of_ones(&group), f64::from(group.world_size()));
    drop(group);
    println!("aborts {}", fake_nccl_aborts());
}

/// Rank 1 never takes part in the collective of rank 0. So the shutdown of rank 0 becomes an abort,
/// which ends the wait.
pub fn shut_down_within_a_collective(group: ProcessGroup, root: &Store) {
    if group.rank() == 1 {
        root.get("rank 0 is done").unwrap();
        return;
    }
    let group = Arc::new(group);
    let waiting = std::thread::spawn({
        let group = Arc::clone(&group);
        move || sum(&group)
    });
    while !group.has_failed() {
        std::thread::yield_now();
    }
    let error = group.shutdown().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    assert!(waiting.join().unwrap().unwrap_err().is_peer_lost());
    assert!(group.check().is_err());
    root.set("rank 0 is done", b"").unwrap();
    println!("aborts {}", fake_nccl_aborts());
}

fn sum(group: &ProcessGroup) -> roundhouse_c10d::Result<()> {
    let mut tensor = Tensor::from_slice(&[1.0]);
    group.all_reduce(&mut tensor, ReduceOp::Sum)
}
