//! Ranks that move large tensors until their group is aborted.

use std::sync::Arc;
use std::time::Duration;

use roundhouse_c10d::{ProcessGroup, ReduceOp, Store};
use tch::{Device, Kind, Tensor};

/// Counter that the test raises to request an abort. It is in the part [`REQUESTS`] of the store.
pub const ABORT: &str = "abort";
pub const REQUESTS: &str = "requests";

/// Polling interval, the same as that of the member's interrupter.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Aborts the group when the test requests it, or when the group has failed.
fn abort_when_over(group: &Arc<ProcessGroup>, store: &Store) {
    let notices = std::env::var("NOTICES").is_ok();
    let (group, store) = (Arc::clone(group), store.prefix(REQUESTS).unwrap());
    std::thread::spawn(move || {
        loop {
            let is_over = if notices {
                group.has_failed()
            } else {
                store.add(ABORT, 0).unwrap() > 0
            };
            if is_over {
                return group.abort().unwrap();
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    });
}

pub fn move_until_aborted(group: ProcessGroup, store: &Store) {
    let group = Arc::new(group);
    abort_when_over(&group, store);
    let mib: i64 = std::env::var("MIB").unwrap().parse().unwrap();
    let movement = std::env::var("MOVE").unwrap();
    let length = mib << 18;
    let mut tensor = Tensor::zeros([length], (Kind::Float, Device::Cpu));
    for step in 0.. {
        println!("step {step}");
        let result = match movement.as_str() {
            "broadcast" => group.broadcast(&mut tensor, 0),
            "each" => group.broadcast_each(&mut tensor.chunk(group.world_size().into(), 0)),
            "sum" => group.all_reduce(&mut tensor, ReduceOp::Sum),
            "send" if group.rank() == 0 => group.send(&tensor, 1),
            "send" => group.receive(&mut tensor, 0),
            "exchange" => exchange(&group, &tensor),
            "pass" => pass(&group, &mut tensor),
            other => panic!("no movement {other}"),
        };
        if let Err(error) = result {
            assert!(error.is_peer_lost(), "{error:?}");
            println!("peer lost at step {step}: {error}");
            return;
        }
    }
}

/// Moves a tensor along a chain: each rank sends and receives at the same time.
fn pass(group: &ProcessGroup, tensor: &mut Tensor) -> roundhouse_c10d::Result<()> {
    let (rank, last) = (group.rank(), group.world_size() - 1);
    let ones = tensor.ones_like();
    let send = (rank < last).then(|| (&ones, rank + 1));
    let receive = (rank > 0).then(|| (tensor, rank - 1));
    group.exchange(send, receive)?.wait()
}

/// Each rank sends a part of the same length to each rank.
fn exchange(group: &ProcessGroup, tensor: &Tensor) -> roundhouse_c10d::Result<()> {
    let size = i64::from(group.world_size());
    let part = tensor.size1().unwrap() / size;
    let input = tensor.narrow(0, 0, part * size);
    let parts = vec![part; usize::try_from(size).unwrap()];
    group.all_to_all(&mut input.zeros_like(), &input, &parts, &parts)
}
