"""A small script with accelerate, in this process."""

import torch
from roundhouse.hf import Accelerator
from small_trainer import Tiny, samples


class Script:
    """A small script of three steps, whose parts a test replaces."""

    def __init__(self, dataset=None, model=None, scheduler=True, loader=None, others=(), **options):
        options = {"epochs": 3, "cpu": True, **options}
        self.accelerator = Accelerator(**options)
        self.bare = model or Tiny()
        self.before = [weight.detach().clone() for weight in self.bare.parameters()]
        optimizer = torch.optim.SGD(self.bare.parameters(), lr=0.1)
        schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))] if scheduler else []
        dataset = dataset or samples()
        train = loader(dataset) if loader else torch.utils.data.DataLoader(dataset, batch_size=10)
        evaluated = torch.utils.data.DataLoader(samples(), batch_size=4)
        prepared = self.accelerator.prepare(self.bare, optimizer, train, evaluated, *schedulers, *others)
        self.model, self.optimizer, self.train, self.evaluated, *self.schedulers = prepared

    def epoch(self, loss=None, backward=None, clip=None, step=None, schedule=None, after=None, begins=True):
        if begins:
            assert self.accelerator.epochs_done == 0
        for batch in self.train:
            found = (loss or (lambda batch: self.model(**batch)["loss"]))(batch)
            (backward or self.accelerator.backward)(found)
            if clip:
                clip()
            (step or self.optimizer.step)()
            (schedule or (lambda: [one.step() for one in self.schedulers]))()
            if after:
                after()

    def is_untouched(self):
        return all(torch.equal(weight, before) for weight, before in zip(self.bare.parameters(), self.before))


def loader(**options):
    return lambda dataset: torch.utils.data.DataLoader(dataset, **options)
