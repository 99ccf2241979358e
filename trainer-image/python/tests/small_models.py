"""Optimizers, small models that they train, and rows of their states."""

import ctypes

import torch
from roundhouse.state import Row

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
}


def trained(make, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = make(model.parameters())
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)


def step(model, optimizer, schedule, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 6, generator=generator)
    torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()


def row_of(parts):
    return Row(dict(zip(("model", "opt", "schedule"), parts)))


def send(sender, receiver, chunk=100):
    """Copies the bytes of a row to another row, as ranks do."""
    memory = (ctypes.c_uint8 * sender.num_bytes)()
    address = ctypes.addressof(memory)
    sender.copy_out(0, sender.num_bytes, address)
    for start in range(0, sender.num_bytes, chunk):
        end = min(start + chunk, sender.num_bytes)
        receiver.copy_in(start, end, address + start)
    return bytes(memory)
