"""The samples of the sides that do not use the package's sampler."""
from models import NUM_SAMPLES, SEED

import roundhouse as rh


class Share:
    """The batches of this rank, with the samples of the other side, so that both sides train the
    same.

    All permutations are computed before the first step, so they are not timed.
    """

    def __init__(self, batch, rank, world):
        self.batch, self.rank, self.world = batch, rank, world
        schedule = rh.Sampler(NUM_SAMPLES, batch, epochs=1, seed=SEED).schedule
        # More epochs would take long to compute. After 1,000 epochs the orders repeat.
        self.orders = [schedule.samples(epoch, 0, NUM_SAMPLES) for epoch in range(1000)]

    def __iter__(self):
        while True:
            for order in self.orders:
                for start in range(0, NUM_SAMPLES, self.batch):
                    first = start + self.batch * self.rank // self.world
                    yield order[first : start + self.batch * (self.rank + 1) // self.world]
