"""The parts of the package, in this process."""

import collections
import concurrent.futures
import ctypes
import math
import multiprocessing
import os
import signal
import socket
import time

import pytest
import torch
from conftest import load
from roundhouse import __version__, errors, network, optimizer
from roundhouse._native import SampleSchedule
from roundhouse.connections import Connections, open_sockets
from roundhouse.data import Batch, Loader, Sampler
from roundhouse.ending import explained, write_result
from roundhouse.evaluation import Evaluation
from roundhouse.failures import Failures
from roundhouse.generations import Generations
from roundhouse.gradients import Gradients, Model
from roundhouse.network import Network
from roundhouse.packed import Packed
from roundhouse.seeding import mixed
from roundhouse.staging import Staging
from roundhouse.state import Row
from roundhouse.streams import Shard
from roundhouse.updates import gradient_norm, unscaled_norm
from world import until

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


def test_version_is_that_of_the_crates() -> None:
    numbers = __version__.split("-")[0].split(".")
    assert [int(number) for number in numbers] > [0, 0]


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
    """Copies the bytes of a row to another one, as ranks do."""
    memory = (ctypes.c_uint8 * sender.num_bytes)()
    address = ctypes.addressof(memory)
    sender.copy_out(0, sender.num_bytes, address)
    for start in range(0, sender.num_bytes, chunk):
        end = min(start + chunk, sender.num_bytes)
        receiver.copy_in(start, end, address + start)
    return bytes(memory)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 7])
def test_a_state_that_is_sent_trains_on_as_the_senders(name, steps):
    ours, theirs = trained(OPTIMIZERS[name], 1), trained(OPTIMIZERS[name], 2)
    left, right = row_of(ours), row_of(theirs)
    for number in range(steps):
        step(*ours, number)
    # The receiver has trained something else meanwhile.
    step(*theirs, 99)
    sent = send(left, right)
    # A rank that has read a checkpoint sends it on before it trains.
    memory = (ctypes.c_uint8 * right.num_bytes)()
    right.copy_out(0, right.num_bytes, ctypes.addressof(memory))
    assert bytes(memory) == sent
    for number in range(steps, steps + 5):
        step(*ours, number)
        step(*theirs, number)
    for mine, other in zip(ours[0].state_dict().values(), theirs[0].state_dict().values()):
        assert torch.equal(mine, other)
    assert ours[1].param_groups[0]["lr"] == theirs[1].param_groups[0]["lr"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_to_learn_what_an_optimizer_keeps_changes_nothing(name):
    ours, untouched = trained(OPTIMIZERS[name], 1), trained(OPTIMIZERS[name], 1)
    row_of(ours)
    for number in range(3):
        step(*ours, number)
        step(*untouched, number)
    for mine, other in zip(ours[0].state_dict().values(), untouched[0].state_dict().values()):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_keeps_is_learned_in_portions(name, monkeypatch):
    sent = []
    for portion in (1 << 20, 100, 1):
        monkeypatch.setattr(optimizer, "_PORTION", portion)
        sent.append(row_of(trained(OPTIMIZERS[name], 1)).described())
    assert sent[0] == sent[1] == sent[2]


class Jealous(torch.optim.SGD):
    """It needs the gradients of all parameters."""

    def step(self, closure=None):
        assert all(parameter.grad is not None for group in self.param_groups for parameter in group["params"])
        super().step(closure)


class Hungry(torch.optim.SGD):
    """It has no memory."""

    def step(self, closure=None):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")


def test_an_optimizer_that_makes_no_step_with_some_gradients_makes_one_with_all(monkeypatch):
    monkeypatch.setattr(optimizer, "_PORTION", 1)
    row = row_of(trained(lambda p: Jealous(p, lr=0.1, momentum=0.9), 1))
    assert "opt.momentum_buffer.5" in [name for name, *_ in row.described()]
    with pytest.raises(torch.OutOfMemoryError):
        row_of(trained(lambda p: Hungry(p, lr=0.1), 1))


def test_a_buffer_that_a_module_replaces_is_what_is_sent_and_what_receives():
    ours, theirs = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    left, right = Row({"norm": ours}), Row({"norm": theirs})
    for number, module in enumerate((ours, theirs)):
        module.running_mean = torch.full((3,), 5.0 + number)
    send(left, right)
    assert theirs.running_mean.tolist() == [5.0, 5.0, 5.0]
    for other, words in [(torch.zeros(4), r"\[4\] of F32"), (None, "a NoneType"), (torch.zeros(3).double(), r"\[3\] of F64")]:
        ours.running_mean = other
        with pytest.raises(errors.StateError, match="norm.running_mean has changed since rh.join: it is " + words):
            send(left, right)


def test_a_result_has_all_names_of_tied_weights(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    write_result(tmp_path / "weights", model)
    again = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    again.load_state_dict(load(tmp_path / "weights"))
    assert torch.equal(again[0].weight, model[0].weight) and torch.equal(again[1].weight, model[0].weight)


def test_entries_that_cannot_be_kept_are_named():
    for state, words in [
        ({}, "rh.join needs state="),
        ({"thing": object()}, "state['thing'] is a object"),
        ({"model": torch.nn.Linear(1, 1), "n": 3}, "state['n'] is a int"),
        ({"z": torch.zeros(2, dtype=torch.complex64)}, "complex64"),
    ]:
        with pytest.raises(errors.StateError, match=words.replace("[", r"\[").replace("]", r"\]")):
            Row(state)


def test_numbers_flags_and_nothing_come_back_as_they_were():
    structure = {"a": [1, -(2**70), 2.5, None, True], "b": ("text", torch.tensor([1.0, 2.0])), "c": {"d": float("inf")}}
    packed = Packed("x", structure)
    changed = {"a": [None, 7, 3, 4.0, False], "b": ("text", torch.tensor([3.0, 4.0])), "c": {"d": 1}}
    back = packed.unpack(packed.pack(changed), structure)
    assert back["a"] == [None, 7, 3, 4.0, False] and type(back["a"][3]) is float
    assert torch.equal(back["b"][1], torch.tensor([3.0, 4.0])) and back["c"] == {"d": 1}
    for other in [{**changed, "e": 1}, {**changed, "a": [1]}, {**changed, "b": ("other", changed["b"][1])}]:
        with pytest.raises(errors.StateError, match="has changed its structure"):
            packed.pack(other)
    with pytest.raises(errors.StateError, match="x.f .* is a object"):
        Packed("x", {"f": object()})


def test_integers_of_128_bits_are_kept_and_larger_ones_are_refused_at_once():
    numbers = [2**128 - 1, 2**127, 2**127 - 1, -(2**127)]
    packed = Packed("x", [0] * 4)
    assert packed.unpack(packed.pack(numbers), [0] * 4) == numbers
    for number in (2**128, -(2**127) - 1):
        with pytest.raises(errors.StateError, match="x.0 of rh.join.* is an integer of 1"):
            Packed("x", [number])


def test_the_order_of_samples_is_that_of_the_trainer_in_rust():
    # The same numbers are in trainer-image/elastic/src/permutation.rs.
    schedule = SampleSchedule(10, 4, epochs=2, seed=7)
    assert schedule.samples(0, 0, 10) == GOLDEN[0]
    assert schedule.samples(1, 0, 10) == GOLDEN[1]


GOLDEN = [[4, 3, 9, 7, 1, 0, 6, 2, 5, 8], [6, 1, 8, 0, 5, 4, 9, 3, 7, 2]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_every_sample_comes_once_per_epoch_whatever_the_world(world_size):
    sampler = Sampler(53, 8, epochs=3, seed=1)
    seen, steps, samples = {0: [], 1: [], 2: []}, 0, 0
    while (first := sampler.plan(steps, samples, (1, 0, world_size))) is not None:
        for rank in range(world_size):
            part = sampler.plan(steps, samples, (1, rank, world_size))
            seen[part.epoch].extend(part.indices)
        steps, samples = steps + 1, samples + first.global_size
    assert steps == sampler.total_steps == 21
    assert all(sorted(indices) == list(range(53)) for indices in seen.values())


class Located:
    """Its samples are their index and the process that reads them."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_follows_a_change_of_the_share_and_keeps_its_workers(workers):
    sampler = Sampler(40, 10, epochs=2, seed=1)
    loader = Loader(Located(), sampler, num_workers=workers)
    samples, processes = 0, set()
    for number, place in enumerate([(1, 0, 1), (1, 0, 1), (2, 1, 2), (2, 1, 2), (3, 0, 3), (3, 0, 3), (4, 0, 1), (4, 0, 1)]):
        wanted = sampler.plan(number, samples, place)
        read = loader.load(wanted, samples)
        assert read[:, 0].tolist() == list(wanted.indices)
        processes.update(read[:, 1].tolist())
        samples += wanted.global_size
    loader.close()
    assert len(processes) == max(workers, 1) and (os.getpid() in processes) == (workers == 0)


def test_a_rank_without_samples_reads_one_that_does_not_count():
    sampler = Sampler(6, 2, epochs=1)
    steps = [sampler.plan(0, 0, (1, rank, 3)) for rank in range(3)]
    assert sorted(step.size for step in steps) == [0, 1, 1]
    empty = next(step for step in steps if step.size == 0)
    loader = Loader([torch.tensor(index) for index in range(6)], sampler)
    assert loader.load(empty, 0).shape == (1,)


def noisy(epoch):
    """A stream with random numbers, whose samples say where they are from."""
    return (torch.tensor([epoch, index, torch.rand(()).item()]) for index in range(41))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_divide_a_stream_whatever_the_world_and_the_workers(workers):
    whole = {}
    for world_size in [1, 3]:
        read = []
        for rank in range(world_size):
            # A prime: the last step of each epoch is smaller, of one sample, so some ranks have none.
            sampler = Sampler(41, 8, epochs=2, seed=1, in_order=True)
            loader = Loader(Shard(noisy, 41), sampler, num_workers=workers)
            samples = 0
            for number in range(sampler.total_steps):
                step = sampler.plan(number, samples, (1, rank, world_size))
                read.extend(loader.load(step, samples)[: step.size])
                samples += step.global_size
            loader.close()
        whole[world_size] = sorted(tuple(sample.tolist()) for sample in read)
    assert [sample[:2] for sample in whole[1]] == [(epoch, index) for epoch in range(2) for index in range(41)]
    assert whole[1] == whole[3]


def test_a_stream_begins_anew_for_a_step_that_is_done_again():
    opened = []
    shard = Shard(lambda epoch: opened.append(epoch) or iter(range(10)), 10)
    assert [shard.at(0, index, None) for index in (3, 3, 7, 2)] == [3, 3, 7, 2]
    assert shard.at(1, 0, None) == 0
    assert opened == [0, 0, 1]
    with pytest.raises(errors.DataMismatch, match="ended after 10 samples of epoch 1, and job.shard_of has num_samples=10"):
        shard.at(1, 10, None)


def test_samplers_and_loaders_name_what_is_wrong():
    for call, words in [
        (lambda: Sampler(0, 4, epochs=1), "num_samples is 0"),
        (lambda: Sampler(4, 4), "epochs=N or steps=N"),
        (lambda: Sampler(4, 4, epochs=1, reduction="max"), "reduction"),
        (lambda: Loader([1, 2], Sampler(3, 1, epochs=1)), "has 2 samples"),
        (lambda: Loader(Shard([1, 2], 2), Sampler(2, 1, epochs=1)), "in_order=True"),
        (lambda: Loader([1, 2], Sampler(2, 1, epochs=1), shuffle=True), "shuffle is the sampler's business"),
    ]:
        with pytest.raises(errors.ConfigError, match=words):
            call()


class EndsWith:
    """Its samples are the signal that the process which reads them gets when its parent ends."""

    def __len__(self):
        return 4

    def __getitem__(self, _):
        number = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
        return number.value


def test_workers_of_loaders_end_with_the_process_that_reads_from_them():
    sampler = Sampler(4, 4, epochs=1)
    loader = Loader(EndsWith(), sampler, num_workers=1)
    assert loader.load(sampler.plan(0, 0, (1, 0, 1)), 0).tolist() == [signal.SIGKILL] * 4
    assert len(multiprocessing.active_children()) == 1
    loader.close()
    assert not multiprocessing.active_children()
    evaluation = Evaluation(EndsWith(), lambda batch: {"loss": sum(batch)}, options={"num_workers": 1})
    assert evaluation.sums(0, 1) == {"loss": 4 * signal.SIGKILL}


def test_an_evaluation_is_due_after_every_so_many_epochs_or_steps_and_at_the_end():
    sampler = Sampler(10, 4, epochs=3)

    def steps(**every):
        evaluation = Evaluation([], dict, **every)
        places = enumerate([0, 4, 8, 10, 14, 18, 20, 24, 28, 30])
        return [step for step, samples in places if evaluation.is_due(step, samples, 0, sampler)]

    assert steps() == [3, 6, 9]
    assert steps(every_epochs=2) == [6, 9]
    assert steps(every_epochs=0, every_steps=4) == [4, 8, 9]
    assert steps(every_epochs=2, every_steps=4) == [4, 6, 8, 9]
    assert not Evaluation([], dict, every_steps=4).is_due(4, 14, 14, sampler)
    with pytest.raises(errors.ConfigError, match="at least 1"):
        Evaluation([], dict, every_steps=0)


def test_a_batch_is_moved_whole():
    pair = collections.namedtuple("pair", ["x", "y"])
    tensor = torch.ones(2)
    packed = torch.nn.utils.rnn.pack_sequence([tensor, tensor])
    encoded = collections.UserDict(ids=tensor, length=2)
    encoded.language = "en"
    batch = Batch(None, [pair(tensor, {"z": tensor}), encoded, packed, "text"], None).to("meta")
    assert type(batch[0]) is pair and batch[0].x.is_meta and batch[0].y["z"].is_meta
    assert type(batch[1]) is collections.UserDict and batch[1]["ids"].is_meta and batch[1]["length"] == 2
    assert batch[1].language == "en" and not encoded["ids"].is_meta
    assert batch[2].data.is_meta and batch[2].batch_sizes.tolist() == [2, 2] and batch[3] == "text"


class Generation:
    """Of a process with two ranks, as the native part tells it and as its group: each loss brings the next one."""

    number = 1

    def advance(self):
        return True

    def place(self):
        return self.number, 0, 2, 0, 0

    def lose(self, _):
        self.number += 1

    def group(self):
        return self

    def become_default(self):
        pass

    def close(self):
        pass


def test_an_error_of_a_callback_that_comes_again_in_the_next_generation_is_the_scripts():
    def advance(*said):
        errors = list(said)
        native = Generation()
        generations = Generations(native, None, torch.device("cpu"))

        def callback():
            if errors:
                raise errors.pop(0)

        generations.callbacks.append(callback)
        assert generations.advance() and not errors
        return native.number

    lost, other = RuntimeError("closed by peer 1"), RuntimeError("closed by peer 2")
    assert advance() == 1
    assert advance(lost) == 2
    assert advance(lost, other, lost) == 4
    with pytest.raises(RuntimeError, match="closed by peer 1"):
        advance(lost, lost)
    with pytest.raises(torch.OutOfMemoryError):
        advance(torch.OutOfMemoryError())
    superseded = errors.PeerLost("a newer generation has written")
    superseded.newer = 7
    with pytest.raises(errors.PeerLost):
        advance(superseded)


def test_a_step_that_fails_in_generation_after_generation_with_the_same_words_is_an_error_of_the_script():
    failures, gradients = Failures(), Gradients()

    def drop(words, step=1):
        gradients.broken = words
        failures.check_drop(step, gradients)

    for words in ("closed by peer 1", "closed by peer 1", "closed by peer 2", "timed out", "timed out", None, None, None):
        drop(words)
    for _ in range(4):
        drop("invalid type")
    with pytest.raises(RuntimeError, match="in each generation: invalid type") as raised:
        drop("invalid type")
    assert failures.is_of_script(raised.value, 0, True), "`with batch:` lets it pass"
    drop("invalid type", step=2)


def test_a_device_that_has_failed_is_no_lost_peer():
    broken = RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later")
    assertion = RuntimeError("CUDA error: device-side assert triggered")
    memory = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:46733")
    for error, is_own, code in ((broken, True, 77), (assertion, True, None), (memory, True, None), (lost, False, None)):
        assert errors.is_own(error) == is_own
        assert explained(error)[0] == code
        assert Failures().is_of_script(error, 0, True) == is_own
        # In a sum of DDP: `commit` raises it in this generation.
        gradients, failures = Gradients(), Failures()
        gradients.broke(error)
        if is_own:
            with pytest.raises(RuntimeError) as raised:
                failures.check_drop(1, gradients)
            assert raised.value is error
        else:
            failures.check_drop(1, gradients)


def test_random_numbers_depend_on_every_part():
    assert len({mixed(1, 2, 3), mixed(1, 2, 4), mixed(1, 3, 2), mixed(2, 2, 3), mixed(1, 2)}) == 5


def test_the_threads_of_a_group_end_with_it():
    def threads():
        return set(os.listdir("/proc/self/task"))

    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    before = threads()
    group = network.connect(store, 1, 0, 1, 30.0, "127.0.0.1", None)
    group.become_default()
    try:
        net = Model(torch.nn.Linear(2, 1), Gradients(), {})
        net._gradients.group = group
        net(torch.ones(1, 2)).sum().backward()
        assert net.module.weight.grad.tolist() == [[1.0, 1.0]]
        # One of an earlier test may end meanwhile.
        assert threads() - before
        net.drop()
    finally:
        group.close()
    # The system still lists a thread for a moment after its end.
    until("the threads have ended", lambda: threads() <= before)


def two_groups():
    """The groups of two ranks that are threads of this process."""
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    stores = [store, network.dial("127.0.0.1", store.port, 30.0)]
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        return list(ranks.map(lambda rank: network.connect(stores[rank], 1, rank, 2, 60.0, "127.0.0.1", None), range(2)))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_objects_go_over_the_device_of_the_group_and_of_its_parts(kind):
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    group = network.connect(store, 1, 0, 1, 30.0, "127.0.0.1", None)
    # As one over NCCL would be: no GPU is needed to ask where objects go.
    group.device = torch.device(kind)
    group.become_default()
    try:
        for own in (group.process_group, torch.distributed.new_group([0])):
            assert torch.distributed.distributed_c10d._get_object_coll_device(own) == kind
            assert torch.device(kind) in own._device_types
    finally:
        group.close()


def test_a_group_is_left_while_a_peer_has_not_joined_a_collective():
    groups = two_groups()
    work = groups[0].backend.allreduce([torch.ones(1)])
    began = time.monotonic()
    groups[0].close()
    assert time.monotonic() - began < 20
    with pytest.raises(RuntimeError):
        work.wait()
    groups[1].close()


@pytest.mark.parametrize("how", ["broadcast", "gradients"])
def test_an_abort_ends_a_wait_for_a_peer_that_never_answers(how):
    groups = two_groups()
    broken = []
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        if how == "broadcast":
            waits = ranks.submit(lambda: groups[0].begin_broadcast(torch.zeros(1), 1).wait())
        else:
            work = groups[0].backend.allreduce([torch.ones(1)])
            waits = ranks.submit(groups[0].waits.future(work, "bucket", broken.append).wait)
        with pytest.raises(concurrent.futures.TimeoutError):
            waits.result(timeout=0.2)
        # The waits end with the abort itself, whatever Gloo makes of its connections.
        groups[0].waits.abort()
        if how == "broadcast":
            with pytest.raises(RuntimeError, match="aborted"):
                waits.result(timeout=10)
        else:
            assert waits.result(timeout=10) == "bucket"
            assert "aborted" in str(broken[0])
        # Later ones end at once.
        with pytest.raises(RuntimeError, match="aborted"):
            groups[0].waits.until_done(work if how == "gradients" else groups[0].backend.allreduce([torch.ones(1)]))
    for group in groups:
        group.abort()
        group.close()


def test_a_wait_at_the_store_ends_with_the_generation():
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        group = network.connect(network.dial("127.0.0.1", store.port, 30.0), 1, 0, 1, 30.0, "127.0.0.1", None)
        stores = network.dial("127.0.0.1", store.port, 30.0)
        waits = ranks.submit(group._store.store.get, "never")
        with pytest.raises(concurrent.futures.TimeoutError):
            waits.result(timeout=0.2)
        group.abort()
        with pytest.raises(RuntimeError):
            waits.result(timeout=10)
    assert stores.add("key", 1) == 1 and store.add("key", 1) == 2
    group.close()


def test_connections_to_peers_are_cut_and_others_stay():
    listener = socket.create_server(("127.0.0.1", 0))

    def pair():
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]

    early, _peer_of_early = pair()
    before = open_sockets()
    own, peer = pair()
    stores = socket.create_server(("127.0.0.1", 0))
    of_store = socket.create_connection(stores.getsockname())
    elsewhere = Connections(before, {"127.0.0.9"}, set())
    assert len(elsewhere) == 0
    group = Connections(before, {"127.0.0.1"}, {stores.getsockname()[1]})
    group.cut()
    group.close()
    assert own.recv(1) == b"" and peer.recv(1) == b""
    for left in (early, of_store):
        left.setblocking(False)
        with pytest.raises(BlockingIOError):
            left.recv(1)


@pytest.mark.parametrize("num_bytes", [1, 7, 64, 1000, 1 << 20])
def test_a_state_that_is_copied_through_two_buffers_is_the_same_state(num_bytes):
    parts = trained(OPTIMIZERS["adamw"], 1)
    step(*parts, 1)
    row = row_of(parts)
    memories = [(ctypes.c_uint8 * (row.num_bytes + 1))() for _ in range(2)]
    for memory, staging in zip(memories, (None, Staging(torch.device("cpu"), num_bytes))):
        row.staging = staging
        for start, end in [(0, row.num_bytes // 3), (row.num_bytes // 3, row.num_bytes), (row.num_bytes, row.num_bytes)]:
            row.copy_out(start, end, ctypes.addressof(memory) + start)
    assert any(memories[0]) and bytes(memories[0]) == bytes(memories[1])


def test_memory_that_pytorch_keeps_is_given_back_before_nccl_takes_its_own(monkeypatch):
    done = []

    class Nccl:
        def __init__(self, *_):
            done.append("nccl")
            raise RuntimeError("there is no GPU")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty cache"))
    monkeypatch.setattr(network, "nccl", Nccl)
    meeting = Network(torch.device("cuda", 0), {}, [])
    with pytest.raises(RuntimeError, match="there is no GPU"):
        meeting.connect(meeting.host("127.0.0.1", 0, 5.0), 1, 0, 1, 5.0, "127.0.0.1", None)
    assert done == ["empty cache", "nccl"]


@pytest.mark.parametrize("most", [None, 0.5])
@pytest.mark.parametrize("unscales", [False, True])
def test_the_norm_is_that_of_gradients_without_a_scale_whoever_takes_it_away(unscales, most):
    model, opt, _ = trained(OPTIMIZERS["plain sgd"], 1)
    parameters = list(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    loss = model(torch.randn(9, 6)).square().sum()
    loss.backward(retain_graph=True)
    expected = float(gradient_norm(parameters, None))
    opt.zero_grad()
    scaler.scale(loss).backward()
    if unscales:
        scaler.unscale_(opt)
    norm = unscaled_norm([opt], parameters, most, scaler, float(gradient_norm(parameters, None)), 64.0)
    assert norm == pytest.approx(expected)
    if most is not None:
        assert float(gradient_norm(parameters, None)) == pytest.approx(most, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (300, 400), (0,)])
def test_the_norm_of_gradients_of_any_kind_is_euclids(dtype, shape):
    parameters = []
    for bad in (None, math.inf, math.nan):
        gradient = torch.full(shape, 100.0, dtype=dtype)
        parameters = [torch.zeros(shape, dtype=dtype), torch.zeros(2), torch.zeros(7), torch.zeros(1, dtype=torch.float64)]
        parameters[0].grad = gradient
        parameters[1].grad, parameters[3].grad = torch.ones(2), torch.ones(1, dtype=torch.float64)
        expected = math.sqrt(1e4 * gradient.numel() + 3)
        assert float(gradient_norm(parameters, None)) == pytest.approx(expected, rel=1e-3)
        if bad is not None and gradient.numel() > 0:
            gradient.view(-1)[-1] = bad
            assert not math.isfinite(float(gradient_norm(parameters, None)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps is 0; it has to be at least 1"),
        ({"epochs": 0}, "epochs is 0; it has to be at least 1"),
        ({"epochs": 1, "seed": -1}, "seed is -1; it has to be from 0"),
        ({"epochs": 1, "seed": 2**64}, "it has to be from 0"),
    ],
)
def test_a_sampler_refuses_numbers_that_mean_nothing(options, words):
    with pytest.raises(errors.ConfigError, match=words):
        Sampler(40, 8, **options)


def test_what_an_optimizer_keeps_since_a_later_step_is_an_error_and_not_left_out():
    parts = trained(OPTIMIZERS["plain sgd"], 1)
    row = row_of(parts)
    memory = (ctypes.c_uint8 * row.num_bytes)()
    copy = lambda: row.copy_out(0, row.num_bytes, ctypes.addressof(memory))  # noqa: E731
    step(*parts, 1)
    copy()
    parts[1].param_groups[0]["momentum"] = 0.9
    step(*parts, 2)
    with pytest.raises(errors.StateError, match="opt of rh.join.*SGD, keeps momentum_buffer since a step after its first"):
        copy()
