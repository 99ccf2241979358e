"""What both sides train: a model, samples in memory, and the size of a step."""
import dataclasses
from collections.abc import Callable

import torch
from peer import resnet18
from torch import nn

NUM_SAMPLES = 1024
SEED = 7


@dataclasses.dataclass(frozen=True)
class Case:
    """`batch`: global batch size, which one and two ranks share equally, and which divides the number of samples."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int


def mlp():
    """256-1024-1024-10: 1.3 million weights, so that a step takes 5 ms or more on one thread."""
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


CASES = {
    "mlp": Case(mlp, (256,), 64),
    "resnet18": Case(resnet18, (3, 32, 32), 32),
}


def prepared(name):
    """Model, data set, optimizer and global batch size. Every call gives the same numbers."""
    case = CASES[name]
    torch.manual_seed(SEED)
    model = case.model()
    samples, labels = torch.rand(NUM_SAMPLES, *case.shape), torch.randint(10, (NUM_SAMPLES,))
    dataset = torch.utils.data.TensorDataset(samples, labels)
    return model, dataset, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), case.batch
