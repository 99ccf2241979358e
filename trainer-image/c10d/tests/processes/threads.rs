//! Groups whose ranks are threads of one process, as in the unit tests of models.

use std::time::Duration;

use roundhouse_c10d::{GroupOptions, ProcessGroup, ReduceOp, Store};
use tch::{Device, Kind, Tensor};

use crate::support::rank::options;

const TIMEOUT: Duration = Duration::from_secs(60);
const PAIRS: u32 = 4;
const ROUNDS: u32 = 100;
const SIZE: u32 = 2;

fn sums_of_a_group(port: u16, rank: u32, name: &str) -> Vec<f64> {
    let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
    let options = GroupOptions {
        timeout: TIMEOUT,
        ..options(name)
    };
    let store = store.prefix(name).unwrap();
    let group = ProcessGroup::new(&store, rank, SIZE, &options).unwrap();
    let mut tensor = Tensor::ones([2], (Kind::Double, Device::Cpu));
    group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
    Vec::try_from(tensor).unwrap()
}

#[test]
fn groups_of_many_threads_are_independent() {
    let store = Store::host(0, TIMEOUT).unwrap();
    let port = store.port();
    std::thread::scope(|scope| {
        for thread in 0..PAIRS * SIZE {
            let (pair, rank) = (thread / SIZE, thread % SIZE);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let sums = sums_of_a_group(port, rank, &format!("pair{pair}-gen{round}"));
                    assert_eq!(sums, [f64::from(SIZE); 2]);
                }
            });
        }
    });
}
