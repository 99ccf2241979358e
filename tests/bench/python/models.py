"""The models of both sides, with samples in memory and a batch size."""
import dataclasses
from collections.abc import Callable

import torch
from peer import Gpt2, resnet18, written
from torch import nn

NUM_SAMPLES = 1024
SEED = 7


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its samples. One, two or four ranks share the global batch size `batch` equally,
    and it divides the number of samples."""

    model: Callable[[], nn.Module]
    samples: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    batch: int


def mlp():
    """An MLP of 256-1024-1024-10 with 1.3 million weights: a step takes at least 5 ms on one
    thread."""
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def classified(*shape):
    """Random samples with labels of ten classes."""
    return lambda: (torch.rand(NUM_SAMPLES, *shape), torch.randint(10, (NUM_SAMPLES,)))


CASES = {
    "mlp": Case(mlp, classified(256), 64),
    "resnet18": Case(resnet18, classified(3, 32, 32), 32),
    "gpt2": Case(Gpt2, lambda: written(NUM_SAMPLES), 8),
}


def prepared(name):
    """The model and data set of a case, and its global batch size. Every call returns equal
    values."""
    case = CASES[name]
    torch.manual_seed(SEED)
    model = case.model()
    return model, torch.utils.data.TensorDataset(*case.samples()), case.batch


def optimizer_of(model):
    """The optimizer of the scripts that have a loop of their own."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def loss_of(scores, labels):
    """The mean loss over labels of any shape."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
