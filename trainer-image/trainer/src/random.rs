//! Random numbers of a pass: a function of the seed, the step and the slice only.

use std::sync::{Mutex, PoisonError};

pub use roundhouse_elastic::splitmix::next as mix;

use crate::task::Mode;

/// The source of random numbers for one pass.
///
/// libtorch has one generator per device, and its kernels draw from it. So a model seeds the
/// generator for each layer that draws, with a number of the layer. A layer then draws the same
/// numbers whether or not other layers drew before it, and also when it runs again to recompute its
/// activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// The random numbers of a training pass. `None` in an evaluation, which draws nothing.
    #[must_use]
    pub fn of(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Train { seed, step, slice } => Some(Self {
                key: mix(mix(mix(seed).wrapping_add(step)).wrapping_add(slice)),
            }),
            Mode::Evaluate => None,
        }
    }

    /// Runs a layer that draws from libtorch's generator. Its numbers are a function of the pass
    /// and of `layer`.
    pub fn layer<T>(self, layer: u64, run: impl FnOnce() -> T) -> T {
        seeded(mix(self.key.wrapping_add(layer)), run)
    }
}

/// Seeds libtorch's generators of all devices and then calls `run`. It holds a lock, because all
/// threads share the generators, so `run` must not call it again.
pub fn seeded<T>(seed: u64, run: impl FnOnce() -> T) -> T {
    static GENERATORS: Mutex<()> = Mutex::new(());
    let _lock = GENERATORS.lock().unwrap_or_else(PoisonError::into_inner);
    tch::manual_seed(seed.cast_signed());
    run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(seed: u64, step: u64, slice: u64) -> Option<Draws> {
        Draws::of(Mode::Train { seed, step, slice })
    }

    #[test]
    fn seed_step_and_slice_change_the_draws() {
        let draws = [
            train(1, 1, 0),
            train(2, 1, 0),
            train(1, 2, 0),
            train(1, 1, 1),
            train(1, 0, 1),
        ];
        for (place, one) in draws.iter().enumerate() {
            assert!(draws[place + 1..].iter().all(|other| other != one));
        }
        assert_eq!(train(1, 1, 0), train(1, 1, 0));
        assert_eq!(Draws::of(Mode::Evaluate), None);
    }
}
