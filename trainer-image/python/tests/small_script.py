"""The objects of a small script, and its training with one process."""

import roundhouse as rh
import torch

RANDOM = torch.Generator().manual_seed(1)
DATA = torch.utils.data.TensorDataset(torch.randn(40, 4, generator=RANDOM), torch.randint(2, (40,), generator=RANDOM))
loss_of = torch.nn.functional.cross_entropy


class Parts:
    """The objects of a script: two layers, and an optimizer for each."""

    def __init__(self):
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        self.first = torch.optim.SGD(self.body.parameters(), lr=0.1)
        self.second = torch.optim.SGD(self.head.parameters(), lr=0.1)
        self.both = [self.first, self.second]

    def state(self, **others):
        return {"body": self.body, "head": self.head, "first": self.first, "second": self.second, **others}


def train(parts, body, *, loss=None, steps=2, **options):
    """Trains with the loss ``loss(job, x)``; ``body(job, loss)`` is the rest of each step."""
    options.setdefault("state", parts.state())
    loss = loss or (lambda job, x: job.model(parts.head)(job.model(parts.body)(x)))
    with rh.join(**options) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=steps)):
            value = loss_of(loss(job, batch.x), batch.y)
            value.backward()
            body(job, value)
