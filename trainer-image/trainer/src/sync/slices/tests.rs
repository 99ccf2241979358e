use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};

use tch::{Device, Kind};

use super::*;
use crate::parameters::Role;

/// Ranks that are threads of this process.
#[derive(Debug)]
struct Threads {
    rank: usize,
    senders: Vec<Sender<Tensor>>,
    receivers: Vec<Mutex<Receiver<Tensor>>>,
}

impl Threads {
    fn world(size: usize) -> Vec<Arc<Self>> {
        let mut rows: Vec<Vec<Option<Sender<Tensor>>>> = Vec::new();
        let mut columns: Vec<Vec<Mutex<Receiver<Tensor>>>> =
            (0..size).map(|_| Vec::new()).collect();
        for _ in 0..size {
            let mut row = Vec::new();
            for column in &mut columns {
                let (sender, receiver) = channel();
                row.push(Some(sender));
                column.push(Mutex::new(receiver));
            }
            rows.push(row);
        }
        rows.into_iter()
            .zip(columns)
            .enumerate()
            .map(|(rank, (row, receivers))| {
                let senders = row.into_iter().flatten().collect();
                Arc::new(Self {
                    rank,
                    senders,
                    receivers,
                })
            })
            .collect()
    }

    fn trade(&self, parts: Vec<Tensor>) -> Tensor {
        for (sender, part) in self.senders.iter().zip(parts) {
            sender.send(part).unwrap();
        }
        let received: Vec<Tensor> = self
            .receivers
            .iter()
            .map(|from| from.lock().unwrap().recv().unwrap())
            .collect();
        Tensor::cat(&received, 0)
    }
}

impl Exchange for Threads {
    fn all_to_all(&self, input: &Tensor, to: &[i64], from: &[i64]) -> Result<Tensor, SyncError> {
        let output = self.trade(
            input
                .split_with_sizes(to, 0)
                .iter()
                .map(Tensor::copy)
                .collect(),
        );
        assert_eq!(
            output.size(),
            [from.iter().sum::<i64>()],
            "rank {}",
            self.rank
        );
        Ok(output)
    }

    fn all_gather(&self, chunk: &Tensor) -> Result<Tensor, SyncError> {
        Ok(self.trade(self.senders.iter().map(|_| chunk.copy()).collect()))
    }
}

fn parameters() -> Parameters {
    let mut parameters = Parameters::default();
    let row = Tensor::arange(7, (Kind::Float, Device::Cpu)) * 0.37 - 1.0;
    parameters.push("weight", Role::Weight, &row).unwrap();
    parameters
        .push("bias", Role::Weight, &Tensor::from_slice(&[0.3_f32]))
        .unwrap();
    parameters
}

/// The loss of samples; its gradients are not round numbers.
fn loss(parameters: &Parameters, places: &Range<u64>) -> Tensor {
    let [weight, bias] = parameters.tensors() else {
        panic!("two tensors");
    };
    let places: Vec<f32> = places.clone().map(|place| (place as f32).sin()).collect();
    let samples = Tensor::from_slice(&places).unsqueeze(1);
    let scores = (samples * weight.unsqueeze(0) + bias).tanh();
    (&scores * &scores).sum(Kind::Float)
}

/// The bits of all gradients and of the loss after one step of one rank.
fn step(mut sync: Slices, batch: &Range<u64>) -> Vec<u64> {
    let mut parameters = parameters();
    let scale = sync.scale(batch.end - batch.start);
    for pass in sync.passes(batch) {
        let sum = loss(&parameters, &pass.places);
        let scaled = sync.before_backward(&pass, &sum * scale, &[]).unwrap();
        scaled.backward();
        sync.after_backward(&pass, &sum, &mut parameters).unwrap();
    }
    let finished = sync.finish(&mut parameters).unwrap();
    let gradients: Vec<Tensor> = parameters.tensors().iter().map(Tensor::grad).collect();
    let values = Vec::<f32>::try_from(Tensor::cat(&gradients, 0)).unwrap();
    let bits = values.iter().map(|value| u64::from(value.to_bits()));
    let loss_sum = finished.loss_sum.map(|sum| sum.double_value(&[0]));
    bits.chain(loss_sum.map(f64::to_bits)).collect()
}

fn of_world(
    num_slices: u32,
    size: u32,
    micro_batch_size: Option<u32>,
    batch: &Range<u64>,
) -> Vec<Vec<u64>> {
    let barrier = Barrier::new(size as usize);
    std::thread::scope(|scope| {
        let ranks = (0..size).zip(Threads::world(size as usize));
        let ranks: Vec<_> = ranks
            .map(|(rank, exchange)| {
                let (barrier, batch) = (&barrier, batch.clone());
                scope.spawn(move || {
                    // Kernels may split sums by the number of threads.
                    tch::set_num_threads(1);
                    let sync = Slices::new(
                        num_slices,
                        micro_batch_size,
                        Some((rank, size, exchange)),
                        Commit::Host,
                    );
                    let bits = step(sync, &batch);
                    // No rank closes its channels while another rank still reads.
                    barrier.wait();
                    bits
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn gradients_are_bit_identical_for_any_number_of_ranks() {
    tch::set_num_threads(1);
    for (num_slices, batch) in [(8, 3..51), (6, 0..37), (5, 10..13), (1, 0..4)] {
        let alone = step(Slices::new(num_slices, None, None, Commit::Host), &batch);
        assert!(alone.iter().any(|bits| *bits != 0));
        for size in 1..=6 {
            for bits in of_world(num_slices, size, None, &batch) {
                assert_eq!(
                    bits, alone,
                    "{num_slices} slices of {batch:?} on {size} ranks"
                );
            }
        }
    }
}

#[test]
fn slices_in_pieces_are_equal_for_any_number_of_ranks() {
    tch::set_num_threads(1);
    let batch = 0..41;
    let alone = step(Slices::new(4, Some(3), None, Commit::Host), &batch);
    for size in [2, 3] {
        for bits in of_world(4, size, Some(3), &batch) {
            assert_eq!(bits, alone, "{size} ranks");
        }
    }
}

#[test]
fn gradient_is_that_of_the_mean_loss() {
    let (batch, expected) = (0..24, parameters());
    (loss(&expected, &batch) / 24.0).backward();
    let gradients: Vec<Tensor> = expected.tensors().iter().map(Tensor::grad).collect();
    let expected = Vec::<f32>::try_from(Tensor::cat(&gradients, 0)).unwrap();
    let found = step(Slices::new(4, None, None, Commit::Host), &batch);
    for (expected, found) in expected.iter().zip(found) {
        let found = f32::from_bits(u32::try_from(found).unwrap());
        assert!(
            (expected - found).abs() < 1e-6 * expected.abs().max(1.0),
            "{expected} {found}"
        );
    }
}
