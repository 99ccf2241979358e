"""Checks that the state contains everything that is trained, and that it does not change its
objects."""

import contextlib

import pytest
import roundhouse as rh
import torch
from small_script import train


@pytest.mark.parametrize("left_out", ["a head", "a number"])
def test_trained_tensor_outside_of_the_state_is_an_error(parts, left_out):
    state = parts.state()
    if left_out == "a head":
        del state["head"]
        words = r"second of .* trains 2 of its 2 parameters outside of the state \(shapes: \[2, 4\], \[2\]\): .* add the module"
    else:
        parts.first.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
        words = r"first of .* trains 1 of its 3 parameters outside of the state \(shapes: \[3\]\): .* or leave them out of the SGD"
    with pytest.raises(rh.StateError, match=words):
        rh.join(state=state)


class Agent:
    """Keeps a module in its own ``state_dict``."""

    def __init__(self, module):
        self.module = module

    def state_dict(self):
        return {"module": self.module.state_dict()}

    def load_state_dict(self, loaded):
        self.module.load_state_dict(loaded["module"])


def test_trained_tensor_may_be_frozen_or_a_view(parts):
    flat = torch.zeros(6)
    view = flat[2:4].requires_grad_()
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    parts.first.add_param_group({"params": [view]})
    parts.second.add_param_group({"params": frozen.parameters()})
    state = parts.state(flat=flat, head=Agent(parts.head))
    options = {"state": state, "gradients": "manual"}
    train(parts, lambda job, loss: job.commit(loss, parts.both), loss=lambda _, x: parts.head(parts.body(x)), **options)


def test_tensor_without_memory_outside_of_the_state_is_named(parts):
    parts.first.add_param_group({"params": [torch.zeros(3).to_sparse().requires_grad_()]})
    with pytest.raises(rh.StateError, match=r"first of .* trains 1 of its 3 parameters outside of the state \(shapes: \[3\]\)"):
        rh.join(state=parts.state())


def test_lazy_modules_and_sharded_tensors_are_refused(tmp_path):
    with pytest.raises(rh.StateError, match=r"model.0.weight .* has no shape yet.* run one batch through the model before rh.join"):
        rh.join(state={"model": torch.nn.Sequential(torch.nn.LazyLinear(2))})
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed import tensor as module

        if not hasattr(module, "DTensor"):  # Before PyTorch 2.5.
            from torch.distributed import _tensor as module
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        part = module.distribute_tensor(torch.ones(4), mesh, [module.Shard(0)])
        with pytest.raises(rh.StateError, match="weights of .* is a DTensor, of which each rank has a part"):
            rh.join(state={"weights": part})
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda parts: setattr(parts.net, "1", torch.nn.Linear(4, 2)), "net.1.weight is another tensor than at rh.join"),
        (lambda parts: parts.net.append(torch.nn.Linear(2, 2)), "net.2.weight was not there at rh.join"),
        (lambda parts: delattr(parts.net, "1"), "net.1.weight is gone since rh.join"),
        (
            lambda parts: parts.first.add_param_group({"params": [torch.zeros(3, requires_grad=True)]}),
            "first of .* has other parameters or groups than at rh.join",
        ),
        # A change without trained parameters.
        (lambda parts: parts.net.append(torch.nn.ReLU()), None),
    ],
)
def test_replaced_module_or_optimizer_is_named_at_the_commit(parts, change, words):
    parts.net = torch.nn.Sequential(parts.body, parts.head)
    state = {"net": parts.net, "first": parts.first, "second": parts.second}

    def body(job, value):
        if job.steps_done == 1:
            change(parts)
        job.commit(value, parts.both)

    with pytest.raises(rh.StateError, match=words) if words else contextlib.nullcontext():
        train(parts, body, loss=lambda job, x: job.model(parts.net)(x), state=state)
