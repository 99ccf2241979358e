"""Trains, and prints how often each commit reads a number from the device. Arguments: steps, type
of the device."""

import sys
import warnings

import roundhouse as rh
import torch

STEPS, DEVICE = int(sys.argv[1]), sys.argv[2]
NAMES = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__", "cpu"}


class Reads(torch.overrides.TorchFunctionMode):
    """Counts reads by the names of their functions. On a GPU, PyTorch reports them itself."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        Reads.count += getattr(function, "__name__", "") in NAMES
        return function(*args, **(kwargs or {}))


def counted(commit):
    """The number of times that the host waits for the device in a commit."""
    if DEVICE == "cpu":
        Reads.count = 0
        with Reads():
            assert commit()
        return Reads.count
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert commit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in seen)


torch.manual_seed(3)
x = torch.randn(64, 8)
dataset = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = torch.nn.Linear(8, 2).to(DEVICE)
opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    for batch in job.steps(dataset, job.sampler(64, 16, steps=STEPS, seed=5)):
        a, b = batch.to(job.device)
        loss = torch.nn.functional.cross_entropy(net(a), b)
        loss.backward()
        found = counted(lambda loss=loss: job.commit(loss, opt, max_grad_norm=1.0))
        print(f"step {batch.step.number}: {found} reads", flush=True)
