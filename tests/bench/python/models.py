"""The models of both sides, with samples in memory and a batch size."""
import dataclasses
from collections.abc import Callable

import torch
from peer import resnet18
from torch import nn

NUM_SAMPLES = 1024
SEED = 7


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with the shape of its samples. One or two ranks share the global batch size `batch`
    equally, and it divides the number of samples."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int


def mlp():
    """An MLP of 256-1024-1024-10 with 1.3 million weights: a step takes at least 5 ms on one
    thread."""
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


CASES = {
    "mlp": Case(mlp, (256,), 64),
    "resnet18": Case(resnet18, (3, 32, 32), 32),
}


def prepared(name):
    """The model, data set, optimizer and global batch size of a case. Every call returns equal
    values."""
    case = CASES[name]
    torch.manual_seed(SEED)
    model = case.model()
    samples, labels = torch.rand(NUM_SAMPLES, *case.shape), torch.randint(10, (NUM_SAMPLES,))
    dataset = torch.utils.data.TensorDataset(samples, labels)
    return model, dataset, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), case.batch
