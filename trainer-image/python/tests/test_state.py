"""The parts of a state that are kept, and the errors for parts that cannot be kept."""

import collections
import os
import struct

import pytest
import roundhouse as rh
import torch
from roundhouse import errors
from roundhouse.network import Network
from roundhouse.optimizer import bytes_of
from roundhouse.packed import Packed
from roundhouse.state import Row
from roundhouse.structure import Structure
from small_models import send

DATA = torch.utils.data.TensorDataset(torch.ones(40, 4), torch.ones(40, dtype=torch.long))


class Kept:
    """An object of a script with a ``state_dict``."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return self.value

    def load_state_dict(self, loaded):
        self.value = loaded


class Counted(torch.nn.Linear):
    """Counts in its extra state."""

    num = 0

    def get_extra_state(self):
        return torch.tensor(self.num)

    def set_extra_state(self, loaded):
        self.num = int(loaded)


class Copies(torch.nn.Linear):
    """Has a copy in its ``state_dict``."""

    def _save_to_state_dict(self, into, prefix, keep_vars):
        into[prefix + "sum"] = self.weight.detach().sum()


class Global(torch.optim.SGD):
    """Keeps a number that belongs to no parameter."""

    def step(self, closure=None):
        self.state["all"]["steps"] = self.state["all"].get("steps", 0) + 1
        return super().step(closure)


def packed(structure, **options):
    return Packed("x", structure, **options)


@pytest.mark.parametrize("more", [{}, {"z": torch.ones(3), "a": torch.zeros(2)}])
def test_keys_in_another_order_match_by_name(more):
    ours = {"hits": 1, "misses": 2.5, 7: {"deep": None}, **more}
    theirs = dict(reversed([*ours.items()])) | {"hits": 0, "misses": 0, 7: {"deep": 1}}
    right = Kept(dict(theirs))
    row = Row({"x": right})
    send(Row({"x": Kept(ours)}), row, chunk=10)
    row.settle()
    assert list(right.value) == list(theirs)
    assert all(right.value[key] is ours[key] or bool((right.value[key] == ours[key]).all()) for key in more)
    assert {key: right.value[key] for key in ("hits", "misses", 7)} == {"hits": 1, "misses": 2.5, 7: {"deep": None}}
    assert packed(ours).words() == packed(theirs).words()


def test_rows_of_earlier_versions_have_the_order_of_the_dict():
    def number(value):
        return bytes([3]) + value.to_bytes(16, "little")

    structure = {"b": 0, "t": torch.zeros(3), "a": 0, "c": 0.0}
    tensor = bytes_of(torch.tensor([1.0, 2.0, 3.0])).numpy().tobytes()
    row = number(5) + tensor + number(6) + bytes([4]) + struct.pack("<d", 0.5).ljust(16, b"\0")
    back = packed(structure).unpack(row, structure)
    assert (back["b"], back["t"].tolist(), back["a"], back["c"]) == (5, [1.0, 2.0, 3.0], 6, 0.5)
    # Objects of PyTorch keep their order.
    assert packed({"b": 5, "a": 6}, is_ordered=True).pack({"b": 5, "a": 6}) == number(5) + number(6)


def test_different_structure_is_named():
    assert packed({"a": [1, 2, 3], "b": ("x", torch.ones(2))}).words() == "x.a.0-2: a number; x.b.0: a string; x.b.1: a tensor of float32 [2]"
    words = [Row({"x": Kept(value)}).structures()["x"].split("; ") for value in ({"hits": 1}, {"misses": 1})]
    networks = [Network(torch.device("cpu"), {"structure of x": own}, []) for own in words]
    store = torch.distributed.HashStore()
    networks[0]._compare(store, 0)
    with pytest.raises(errors.StateError, match="other structure of x than rank 0: x.misses: a number, not x.hits: a number"):
        networks[1]._compare(store, 1)


def test_tensor_with_a_changed_type_or_shape_is_named():
    kept = packed({"best": torch.tensor(0), "other": torch.zeros(2, 3)})
    for change in ({"best": torch.tensor(0.5).double()}, {"other": torch.zeros(3, 2)}):
        now = {"best": torch.tensor(0), "other": torch.zeros(2, 3), **change}
        with pytest.raises(errors.StateError, match=f"x.{next(iter(change))} of .* has changed its structure .*: it is a tensor of"):
            kept.pack(now)


def test_dict_and_tuple_subclasses_keep_their_types():
    Pair = collections.namedtuple("Pair", "a b")
    structure = {"d": collections.defaultdict(int, {"a": 1}), "c": collections.Counter("aab"), "p": Pair(1, 2)}
    structure["o"] = collections.OrderedDict(b=1, a=2)
    back = packed(structure).unpack(packed(structure).pack(structure), structure)
    assert back == structure and [type(value) for value in back.values()] == [type(value) for value in structure.values()]
    assert back["d"]["missing"] == 0 and back["p"].b == 2


def test_invalid_checkpoint_names_are_refused():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    for state, words in [
        ({"__metadata__": torch.zeros(3)}, "state.'__metadata__'.: .* give the entry another name"),
        ({"net": net, "net.0": net[0]}, "state.'net'. and state.'net.0'. both .* name net.0.weight: give one of them another"),
    ]:
        with pytest.raises(rh.ConfigError, match=words):
            Row(state)
    Row({"net": net, "first": net[0]})


def test_expanded_buffer_receives_values():
    ours, theirs = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    for number, module in enumerate((ours, theirs)):
        module.register_buffer("mask", torch.full((1, 4), 5.0 + number).expand(3, 4))
    send(Row({"net": ours}), Row({"net": theirs}), chunk=7)
    assert theirs.mask.tolist() == [[5.0] * 4] * 3


def test_buffer_created_after_the_join_is_named():
    inner = torch.nn.Linear(4, 2)
    inner.register_buffer("centre", None)
    structure = Structure({"net": torch.nn.Sequential(inner)})
    inner.register_buffer("cache", torch.zeros(1), persistent=False)
    structure.check()
    inner.centre = torch.zeros(4)
    for _ in range(2):
        with pytest.raises(errors.StateError, match="net.0.centre, a buffer, was not there at rh.join: .* persistent=False"):
            structure.check()


def test_extra_state_of_a_module_is_current():
    ours, theirs = (torch.nn.Sequential(Counted(4, 2)) for _ in range(2))
    left, right = Row({"net": ours}), Row({"net": theirs})
    assert ("net.0._extra_state", "I64", [], 8) in left.described()
    ours[0].num = 7
    send(left, right)
    right.settle()
    assert theirs[0].num == 7
    with pytest.raises(errors.StateError, match="net.sum of .* is a copy, which state_dict.. of the Copies makes in each call"):
        Row({"net": Copies(4, 2)})


def test_unsupported_optimizer_state_is_named():
    net = torch.nn.Linear(4, 2)
    with pytest.raises(errors.StateError, match="opt of .*, a Global, keeps steps in its state under 'all', which is no parameter"):
        Row({"net": net, "opt": Global(net.parameters(), lr=0.1)})
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    row = Row({"net": net, "opt": opt})
    opt.state[net.bias] = {"momentum_buffer": torch.zeros(2, dtype=torch.int32)}
    with pytest.raises(errors.StateError, match=r"opt.momentum_buffer.1 of .* has changed since rh.join: it is \[2\] of torch.int32"):
        row.digests()
    opt.state[net.bias] = {"momentum_buffer": torch.zeros(2)}
    opt.state["all"] = {"steps": 1}
    with pytest.raises(errors.StateError, match="keeps steps in its state under 'all'"):
        row.digests()


def trained(directory, body, *, steps=4):
    """Trains a few steps with a checkpoint of each step. Returns the remaining steps of a second
    start."""
    net = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with rh.join(state={"net": net, "opt": opt}, checkpoint_dir=directory, checkpoint_every_steps=1) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=steps)):
            loss = torch.nn.functional.cross_entropy(job.model(net)(batch.x), batch.y)
            loss.backward()
            job.commit(loss, opt)
            body(job, batch.step.number)
    return job


def test_script_may_change_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    job = trained("run", lambda job, step: os.chdir(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []
    assert job._process.checkpoint_dir == tmp_path / "run" and len(list((tmp_path / "run").rglob("manifest.json"))) > 0


def test_forked_child_does_not_report_for_its_rank(tmp_path):
    says = []

    def body(job, step):
        if step != 2:
            return
        child = os.fork()
        if child == 0:
            code = 0
            try:
                job._ended = job._fail = job._end = None  # These must not be called.
                job.__exit__(SystemExit, SystemExit(0), None)
            except BaseException:
                code = 4
            os._exit(code)
        says.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    trained(tmp_path, body)
    assert says == [0]
