"""Gradients and buffers in a step, in a group whose ranks are in this process."""

import concurrent.futures
import contextlib
import weakref

import pytest
import torch
from roundhouse import errors
from roundhouse.buffers import Buffers
from roundhouse.data import Step
from roundhouse.gradients import Gradients, Model
from roundhouse.groups import Group
from roundhouse.network import Network
from roundhouse.step_numbers import StepNumbers


@pytest.fixture
def gradients():
    """The gradients of a group of one rank."""
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    group = network.connect(store, 1, 0, 1, 30.0, "127.0.0.1", None)
    group.become_default()
    made = Gradients()
    made.group = group
    yield made
    for model in made.models:
        model.drop()
    group.close()


def begin(gradients, optimizer):
    optimizer.zero_grad()
    gradients.begin(Step(1, 0, (0,), 1, False, 1, 0, 1))


class Layers(torch.nn.Module):
    """Two layers, each in its own bucket. The script can skip one of them, as LayerDrop does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)
        self.skips = None

    def forward(self, x):
        for layer in (self.first, self.second):
            x = x if layer is self.skips else layer(x)
        return x.sum()


X = torch.ones(1, 300)
ONE_LAYER = {"bucket_cap_mb": 0.3}


@pytest.mark.parametrize("skipped", ["first", "second"])
@pytest.mark.parametrize("steps", [0, 2])
def test_partly_summed_gradients_are_not_a_lost_peer(gradients, skipped, steps):
    layers = Layers()
    net, optimizer = Model(layers, gradients, ONE_LAYER), torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(steps):
        begin(gradients, optimizer)
        net(X).backward()
        assert gradients.unsummed([optimizer]) == []
    begin(gradients, optimizer)
    layers.skips = getattr(layers, skipped)
    net(X).backward()
    words = rf"Layers were not summed .* left out {skipped}.weight, {skipped}.bias; .* find_unused_parameters=True"
    with pytest.raises(errors.NotCommitted, match=words):
        gradients.unsummed([optimizer])
    with pytest.raises(errors.NotCommitted, match=words):
        net(X)
    assert gradients.broken is None


def test_unused_parameters_are_summed_if_ddp_finds_them(gradients):
    layers = Layers()
    net = Model(layers, gradients, {**ONE_LAYER, "find_unused_parameters": True})
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for layers.skips in (layers.first, None, layers.second):
        begin(gradients, optimizer)
        net(X).backward()
        assert gradients.summed and gradients.unsummed([optimizer]) == []


def test_unfrozen_layers_get_a_new_ddp(gradients):
    layers = Layers()
    net, optimizer = Model(layers, gradients, ONE_LAYER), torch.optim.SGD(layers.parameters(), lr=0.1)
    for frozen, other in [(None, None), (layers.first, layers.second), (layers.second, layers.first), (None, None)]:
        layers.requires_grad_(True)
        if frozen is not None:
            frozen.requires_grad_(False)
        begin(gradients, optimizer)
        net(X).backward()
        assert gradients.summed and gradients.unsummed([optimizer]) == []
        assert frozen is None or (frozen.weight.grad is None and other.weight.grad is not None)


def test_ddp_survives_steps_with_frozen_parameters(gradients):
    layers, other = Layers(), torch.nn.Linear(1, 1)
    net, optimizer = Model(layers, gradients, {}), torch.optim.SGD([*layers.parameters(), *other.parameters()], lr=0.1)
    ddps = []
    for is_trained in (True, False, True):
        layers.requires_grad_(is_trained)
        begin(gradients, optimizer)
        (net(X) + other(torch.ones(1, 1)).sum()).backward()
        assert bool(gradients.summed) is is_trained
        assert gradients.unsummed([optimizer])[-2:] == list(other.parameters())
        ddps.append(net._ddp[0])
    assert ddps[0] is ddps[2]


def test_gradients_of_an_unwrapped_module_are_found(gradients):
    models = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
    optimizer = torch.optim.SGD([{"params": model.parameters()} for model in models], lr=0.1)
    nets = [Model(model, gradients, {}) for model in models]
    x = torch.ones(1, 2)
    begin(gradients, optimizer)
    (nets[0](x) + nets[1](x)).backward()
    assert gradients.unsummed([optimizer]) == []
    begin(gradients, optimizer)
    (nets[0](x) + models[1](x)).backward()
    assert gradients.unsummed([optimizer]) == list(models[1].parameters())
    begin(gradients, optimizer)
    nets[0](x).backward()
    assert gradients.unsummed([optimizer]) == []


def test_only_the_last_pass_of_a_step_is_summed(gradients):
    model = torch.nn.Linear(2, 1)
    net, optimizer = Model(model, gradients, {}), torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(1, 2)

    def passes(*are_last):
        begin(gradients, optimizer)
        for is_last in are_last:
            if is_last:
                net(x).backward()
            else:
                with net.no_sync():
                    net(x).backward()
        return bool(gradients.summed), gradients.is_summed_twice

    assert passes(False, False, True) == (True, False)
    assert passes(False, False) == (False, False)
    assert passes(True, False) == (False, False)
    assert passes(True, True) == (True, True)
    begin(gradients, optimizer)
    net(x).backward()
    with torch.no_grad():
        net(x)
    net(x)  # A pass without a backward pass, as for a metric.
    assert gradients.summed and gradients.unsummed([optimizer]) == []


class FailsOnce(torch.nn.Module):
    """The first pass raises an error while it holds a tensor."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind, self.held = torch.nn.Linear(2, 1), kind, None

    def forward(self, x):
        activation = x + 1
        if self.held is None:
            self.held = weakref.ref(activation)
            raise self.kind("closed by peer\nat its line")
        assert self.held() is None
        return self.layer(x)


def test_failed_pass_is_repeated_without_its_tensors(gradients):
    net = Model(FailsOnce(RuntimeError), gradients, {})
    begin(gradients, torch.optim.SGD(net.module.parameters(), lr=0.1))
    net(torch.ones(1, 2))
    assert gradients.broken == "RuntimeError: closed by peer"


def test_out_of_memory_in_a_pass_is_not_a_lost_peer(gradients):
    net = Model(FailsOnce(torch.OutOfMemoryError), gradients, {})
    begin(gradients, torch.optim.SGD(net.module.parameters(), lr=0.1))
    with pytest.raises(torch.OutOfMemoryError):
        net(torch.ones(1, 2))
    assert gradients.broken is None


class Centered(torch.nn.Module):
    """Replaces a buffer by a new tensor in each pass, and has another buffer that grows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("center", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("late", None, persistent=False)

    def forward(self, x, length=2):
        self.center = self.center * 0.5 + x
        self.cache = torch.full((length,), x)
        self.late = self.center


def test_replaced_buffer_is_restored():
    module = Centered()
    buffers = Buffers([module])
    for step in (1.0, 2.0):
        buffers.remember()
        module(step)
    buffers.restore()
    assert module.center.tolist() == [1.0, 1.0] and module.cache.tolist() == [1.0, 1.0] and module.late is not None
    buffers.restore()
    assert module.center.tolist() == [1.0, 1.0]


def test_buffers_have_their_values_from_before_the_step():
    module = Centered()
    buffers = Buffers([module])
    buffers.remember()
    module(1.0)
    center = module.center
    buffers.remember()
    module.mask.fill_(True)
    module(2.0)
    after = module.center
    with pytest.raises(OSError, match="full"), buffers.as_before():
        assert module.center is center and module.center.tolist() == [1.0, 1.0] and not module.mask.any()
        raise OSError("the volume is full")
    assert module.center is after and module.center.tolist() == [2.5, 2.5] and module.mask.all()


def test_replaced_buffers_are_broadcast():
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    stores = [store, network.dial("127.0.0.1", store.port, 30.0)]
    modules = [Centered(), Centered()]
    buffers = [Buffers([module]) for module in modules]
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        groups = list(ranks.map(lambda rank: network.connect(stores[rank], 1, rank, 2, 30.0, "127.0.0.1", None), range(2)))
        for lengths, cache in [((2, 2), [1.0, 1.0]), ((3, 2), [2.0, 2.0]), ((2, 3), [2.0, 2.0, 2.0])]:
            for rank, module in enumerate(modules):
                module(1.0 + rank, lengths[rank])
            modules[0].mask.fill_(True)
            list(ranks.map(lambda rank: buffers[rank].share(groups[rank], 0, Gradients()), range(2)))
            assert torch.equal(modules[0].center, modules[1].center) and modules[1].mask.all()
            assert modules[1].cache.tolist() == cache
    modules[1].center = torch.zeros(3)
    with pytest.raises(errors.StateError, match="the buffer center of Centered has changed"):
        buffers[1].share(groups[1], 0, Gradients())
    for group in groups:
        group.close()


def test_rank_that_aborts_has_another_digest():
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    stores = [store, network.dial("127.0.0.1", store.port, 30.0)]

    def digests(rank):
        numbers = StepNumbers(groups[rank].device, 1.0, 1.0, 1.0, 7.0)
        # The numbers of the host and their checksums. Each rank's digest has its own place.
        begun = numbers.begin(groups[rank], 7 * [0.0] + 7 * [1.0], [0, 1, 2, 3, 4, 5 + rank])
        return numbers.end(begun)[5:7]

    with concurrent.futures.ThreadPoolExecutor() as ranks:
        groups = list(ranks.map(lambda rank: network.connect(stores[rank], 1, rank, 2, 30.0, "127.0.0.1", None), range(2)))
        assert list(ranks.map(digests, range(2))) == [[7.0, 7.0]] * 2
        # Group.abort does this first. Over NCCL the sums may still be correct after that.
        groups[0]._abort_flag.fill_(1.0)
        assert list(ranks.map(digests, range(2))) == [[8.0, 7.0]] * 2
    for group in groups:
        group.abort()
        assert group.abort_flag().item() == 1
        group.close()


class Recorded:
    """A fake of NCCL's group for CPUs, which records the calls."""

    def __init__(self, fails):
        self.calls, self._fails = [], fails

    def _start_coalescing(self):
        self.calls.append("start")

    def _end_coalescing(self):
        self.calls.append("end")
        return self

    def recv(self, tensors, source, tag):
        self.calls.append(f"from {source}")
        if self._fails:
            raise RuntimeError("no such rank")

    def send(self, tensors, to, tag):
        self.calls.append(f"to {to}")

    def wait(self):
        pass


def test_nccl_exchange_is_one_group_of_operations():
    sent, received = torch.ones(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    pieces = (sent.data_ptr(), 4, 2), (received.data_ptr(), 4, 1)
    for fails, expected in [(False, ["start", "from 1", "to 2", "end"]), (True, ["start", "from 1", "end"])]:
        backend = Recorded(fails)
        group = Group(backend, None, torch.device("cpu"), (1, 0, 3), 30.0, None)
        with contextlib.nullcontext() if not fails else pytest.raises(RuntimeError, match="no such rank"):
            group.end_exchange(group.begin_exchange(*pieces))
        assert backend.calls == expected
