//! Ranks over the fake NCCL whose group is aborted on request of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use roundhouse_c10d::{ProcessGroup, ReduceOp, Store};
use tch::{Kind, Tensor};

use super::rank::Trainer;
use super::sums;

/// Counter that the test raises to request an abort. It is in the part [`REQUESTS`] of the store.
pub const ABORT: &str = "abort";
pub const REQUESTS: &str = "requests";

/// Starts two threads that abort the group when the test requests it and a collective has hung for
/// the group's timeout. Returns a flag that shows whether they have begun.
fn abort_on_request(group: &Arc<ProcessGroup>, store: &Store) -> Arc<AtomicBool> {
    let begun = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let (group, begun) = (Arc::clone(group), Arc::clone(&begun));
        let store = store.prefix(REQUESTS).unwrap();
        std::thread::spawn(move || {
            let hangs = || group.has_failed() || group.check().is_err();
            while store.add(ABORT, 0).unwrap() == 0 || !hangs() {
                std::thread::sleep(Duration::from_millis(5));
            }
            begun.store(true, Ordering::SeqCst);
            group.abort().unwrap();
        });
    }
    begun
}

/// Every result is either correct or an error. After the first error all calls fail at once.
pub fn sum_until_aborted(group: ProcessGroup, store: &Store) {
    let group = Arc::new(group);
    let begun = abort_on_request(&group, store);
    let size = i64::from(group.world_size());
    for step in 0_i64.. {
        let mut tensor = Tensor::from_slice(&[step as f64; 100]);
        if let Err(error) = group.all_reduce(&mut tensor, ReduceOp::Sum) {
            assert!(begun.load(Ordering::SeqCst), "{error} before any abort");
            assert!(error.is_peer_lost(), "{error:?}");
            break;
        }
        let sums = Vec::<f64>::try_from(tensor).unwrap();
        assert!(sums.iter().all(|sum| *sum == (step * size) as f64));
        println!("step {step}");
    }
    only_errors_at_once(&group);
    println!("aborted");
}

/// The backward pass does not report garbage in the gradients; the next call does.
pub fn train_until_aborted(group: ProcessGroup, store: &Store) {
    let group = Arc::new(group);
    let begun = abort_on_request(&group, store);
    let mut trainer = Trainer::new(&group);
    for step in 0.. {
        let result = trainer.step();
        if group.check().is_err() {
            println!(
                "garbage {}",
                result.is_ok() && !trainer.gradients_are_finite()
            );
            break;
        }
        assert!(!begun.load(Ordering::SeqCst) || group.check().is_err());
        assert!(result.is_ok() && trainer.gradients_are_finite());
        println!("step {step}");
    }
    only_errors_at_once(&group);
    // Drop the Reducer before the group, as the trainer does.
    drop(trainer);
    println!("aborted");
}

/// Both ranks abort while a thread launches sums. Each launch takes some time.
pub fn abort_within_a_launch(group: ProcessGroup) {
    let group = Arc::new(group);
    let (sender, launches) = channel();
    let launching = std::thread::spawn({
        let group = Arc::clone(&group);
        move || loop {
            let _ = sender.send(());
            let mut tensor = Tensor::from_slice(&[1.0]);
            if let Err(error) = group.all_reduce(&mut tensor, ReduceOp::Sum) {
                return error;
            }
        }
    });
    for _ in 0..3 {
        launches.recv().unwrap();
    }
    // The third sum is about to be launched.
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(10));
    group.abort().unwrap();
    assert!(launching.join().unwrap().is_peer_lost());
    println!("seconds {}", begun.elapsed().as_secs_f64());
}

/// A sum in the forward pass reports that the group is aborted. Garbage of the backward pass is
/// reported by the next call.
pub fn pass_until_aborted(group: ProcessGroup, store: &Store) {
    let group = Arc::new(group);
    let begun = abort_on_request(&group, store);
    for step in 0.. {
        let result = sums::pass(&group);
        if group.check().is_err() {
            assert!(begun.load(Ordering::SeqCst));
            assert!(result.is_ok() || result.unwrap_err().is_peer_lost());
            break;
        }
        result.unwrap();
        println!("step {step}");
    }
    only_errors_at_once(&group);
    println!("aborted");
}

fn only_errors_at_once(group: &ProcessGroup) {
    let asked = Instant::now();
    let mut tensor = Tensor::zeros([3], (Kind::Float, tch::Device::Cpu));
    let errors = [
        group.all_reduce(&mut tensor, ReduceOp::Max).unwrap_err(),
        group.broadcast(&mut tensor, 0).unwrap_err(),
        group.broadcast_coalesced(&mut [tensor], 0).unwrap_err(),
        group.barrier().unwrap_err(),
        group.check().unwrap_err(),
    ];
    assert!(errors.iter().all(roundhouse_c10d::Error::is_peer_lost));
    assert!(asked.elapsed() < Duration::from_secs(2));
    group.abort().unwrap();
    assert!(!group.has_failed());
}
