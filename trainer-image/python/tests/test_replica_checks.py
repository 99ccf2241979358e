"""What a replica refuses, before weights change. One process is a replica of one."""

import re

import pytest
import roundhouse as rh
import torch
import torch.distributed as dist
from roundhouse import replica
from roundhouse.column_sums import ColumnSums
from roundhouse.gradients import Gradients
from roundhouse.links import Call, CollectiveMismatch, Subject
from roundhouse.replica import Replica
from roundhouse.replica_pods import one_pod
from roundhouse.sharded import ShardedModel, forget_accumulated
from roundhouse.shared_views import SharedViews
from roundhouse.state import Row
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate


@pytest.fixture(autouse=True)
def no_replica():
    """Forgets the replica of a test, of which a process has only one."""
    yield
    replica._current = None
    if dist.is_initialized():
        dist.destroy_process_group()


def refused(kind, *words):
    return pytest.raises(kind, match=".*".join(map(re.escape, words)))


def sharded():
    mesh = rh.replica_mesh()
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loop(job, model, *, change=lambda net: None, **options):
    sampler = job.sampler(8, 4, steps=2)
    net = job.model(model)
    for batch in job.steps([(torch.ones(4), 1)] * 8, sampler):
        loss = torch.nn.functional.cross_entropy(net(batch.x), batch.y)
        loss.backward()
        change(net)
        job.commit(options.pop("loss", loss), **options)


PASSES, RESULT, PLACES = "the same number of passes", "job.save_result in all processes", "with the same number of values"
MISMATCHES = [
    (Call(0, Subject.PASS, 0), Call(1, Subject.SUM, 3), PASSES),
    (Call(0, Subject.VOTE, 9), Call(2, Subject.PASS, 0), PASSES),
    (Call(0, Subject.PASS, 0), Call(1, Subject.END, 0), RESULT),
    (Call(0, Subject.RESULT, 0), Call(1, Subject.SUM, 3), RESULT),
    (Call(0, Subject.SUM, 2), Call(1, Subject.SUM, 3), PLACES),
    (Call(0, Subject.HOLDS, -1), Call(1, Subject.VOTE, -1), PLACES),
]


@pytest.mark.parametrize(("first", "other", "words"), MISMATCHES)
def test_error_names_both_collectives_of_a_replica(first, other, words):
    message = str(Replica(0, 1, one_pod(""), None).lost(CollectiveMismatch(first, other)))
    assert [one for one in (PASSES, RESULT, PLACES) if one in message] == [words]
    assert message.endswith(f"({first.words()}, and {other.words()})")


def test_one_process_trains_as_a_replica_of_one(tmp_path):
    model, opt = sharded()
    before = model[0].weight.full_tensor().clone()
    with rh.join(state={"model": model, "opt": opt}, checkpoint_dir=tmp_path) as job:
        loop(job, model)
        file = job.save_result("weights.safetensors")
    assert job.steps_done == 2 and file.exists()
    assert not torch.equal(before, model[0].weight.full_tensor())


def test_optimizer_of_whole_parameters_is_refused():
    # An evaluation leaves whole parameters in the place of the sharded ones.
    model, _ = sharded()
    with torch.no_grad():
        model(torch.ones(2, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    with refused(rh.StateError, "make the optimizer before the first pass"):
        rh.join(state={"opt": opt, "model": model})


def test_pass_before_the_join_changes_nothing():
    model, opt = sharded()
    with torch.no_grad():
        model(torch.ones(2, 4))
    with rh.join(state={"opt": opt, "model": model}) as job:
        loop(job, model)
    assert job.steps_done == 2


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_forgotten_passes_add_nothing_to_the_next_pass(shape):
    if len(shape) == 2 and torch.__version__ < "2.11":
        pytest.skip("FSDP2 of older versions of PyTorch has a mean over the copies that Gloo lacks")
    model = torch.nn.Linear(4, 3)
    fully_shard(model, mesh=rh.replica_mesh("copy", "shard", shape=shape) if len(shape) == 2 else rh.replica_mesh())
    sums = "set_requires_all_reduce" if len(shape) == 2 else "set_requires_gradient_sync"

    def gradient():
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        return model.weight.grad

    right = gradient().full_tensor().clone()
    # A dropped step whose last pass, which would sum, has not come.
    getattr(model, sums)(False)
    assert gradient() is None
    getattr(model, sums)(True)
    forget_accumulated([model])
    assert torch.equal(gradient().full_tensor(), right)


def test_mesh_that_does_not_fit_is_refused():
    with refused(rh.ConfigError, "2 processes, and a worker has 1"):
        rh.replica_mesh("fsdp", "tp", shape=(2, 1))
    with refused(rh.ConfigError, "shape=(1,) has to give a size"):
        rh.replica_mesh("fsdp", "tp", shape=(1,))
    with refused(rh.ConfigError, "give the size of each dimension"):
        rh.replica_mesh("fsdp", "tp")
    with refused(rh.ConfigError, "data names dp, which is no dimension of shard"):
        rh.replica_mesh("shard", data=("dp",))


def test_second_mesh_is_refused():
    rh.replica_mesh()
    with refused(rh.ConfigError, "rh.replica_mesh was called twice"):
        rh.replica_mesh()


def test_mesh_beside_another_default_group_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with refused(rh.ConfigError, "remove torch.distributed.init_process_group"):
        rh.replica_mesh()


def test_processes_with_whole_models_need_no_mesh(monkeypatch):
    monkeypatch.setenv("ROUNDHOUSE_MEMBERSHIP_FILE", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with refused(rh.ConfigError, "set workers.sharded: true"):
        rh.replica_mesh()


def test_sharded_job_without_a_mesh_is_refused(monkeypatch):
    monkeypatch.setenv("ROUNDHOUSE_REPLICA_FILE", "none")
    with refused(rh.ConfigError, "without rh.replica_mesh()"):
        replica.check_join(2)
    replica.check_join(1)


def test_sharded_tensor_without_a_mesh_is_refused():
    model, opt = sharded()
    replica._current = None
    with refused(rh.StateError, "is a DTensor", "rh.replica_mesh()"):
        rh.join(state={"model": model, "opt": opt})


def test_tensor_on_meta_is_refused():
    mesh = rh.replica_mesh()
    with torch.device("meta"):
        model = torch.nn.Linear(4, 2)
    fully_shard(model, mesh=mesh)
    with refused(rh.StateError, "model.weight", "is on the device meta"):
        rh.join(state={"model": model})


def test_incomplete_sums_are_refused():
    mesh = rh.replica_mesh()
    partial = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    with refused(rh.StateError, "sums that are not complete"):
        rh.join(state={"model": torch.nn.Linear(2, 2), "partial": partial})


def test_own_sums_of_gradients_are_refused():
    model, opt = sharded()
    with refused(rh.ConfigError, "leave out gradients"):
        rh.join(state={"model": model, "opt": opt}, gradients="manual")


def test_options_of_ddp_are_refused():
    model, opt = sharded()
    with rh.join(state={"model": model, "opt": opt}) as job:
        with refused(rh.ConfigError, "leave out bucket_cap_mb"):
            job.model(model, bucket_cap_mb=1)
        loop(job, model)


def test_gradients_unscaled_by_the_script_are_refused():
    model, opt = sharded()
    before = model[0].weight.full_tensor().clone()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    with refused(rh.ConfigError, "scaler.unscale_(optimizer)", "remove the call"):
        with rh.join(state={"model": model, "opt": opt, "scaler": scaler}) as job:
            loop(job, model, scaler=scaler, change=lambda net: scaler.unscale_(opt))
    assert torch.equal(before, model[0].weight.full_tensor())


def test_scaler_of_half_precision_weights_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2)).half()
    rh.replica_mesh("tp")
    opt, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with refused(rh.ConfigError, "keep the parameters in float32"):
        with rh.join(state={"model": model, "opt": opt, "scaler": scaler}) as job:
            net = job.model(model)
            for batch in job.steps([(torch.ones(4).half(), 1)] * 8, job.sampler(8, 4, steps=2)):
                loss = torch.nn.functional.cross_entropy(net(batch.x).float(), batch.y)
                loss.backward()
                job.commit(loss, opt, scaler=scaler)


def test_loss_has_to_be_known_by_one_process():
    model, opt = sharded()
    with refused(rh.ConfigError, "in all processes with the same samples"):
        with rh.join(state={"model": model, "opt": opt}) as job:
            loop(job, model, loss=None)


def test_sums_have_to_be_known_by_one_process():
    model, opt = sharded()
    with refused(rh.ConfigError, "job.sum(None) in all processes with the same samples"):
        with rh.join(state={"model": model, "opt": opt}) as job:
            loop(job, model, change=lambda net: job.sum(None))


@pytest.mark.parametrize("name", ["tp", "shard"])
def test_evaluation_has_to_be_known_by_one_process(name):
    rh.replica_mesh(name)
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with refused(rh.ConfigError, "the function of rh.Evaluation has returned None"):
        with rh.join(state={"model": model, "opt": opt}) as job:
            net, evaluation = job.model(model), rh.Evaluation([(torch.ones(4), 1)], lambda batch: None)
            for batch in job.steps([(torch.ones(4), 1)] * 8, job.sampler(8, 4, steps=1), evaluation=evaluation):
                loss = torch.nn.functional.cross_entropy(net(batch.x), batch.y)
                loss.backward()
                job.commit(loss)


def test_group_of_a_generation_is_refused():
    model, opt = sharded()
    with rh.join(state={"model": model, "opt": opt}) as job:
        with refused(rh.ConfigError, "PyTorch's default group and the mesh are the processes of this replica"):
            job.group  # noqa: B018
        loop(job, model)


class OfTwo(Replica):
    """A replica of two processes, of which the other one has these views."""

    def __init__(self, others):
        super().__init__(0, 1, one_pod(""), None)
        self.size, self.num_data, self._others = 2, 2, others

    def gather(self, key, own):
        own = super().gather(key, own)[0]
        return [own, self._others if key == "views" else {name: number + self.differs for name, number in own.items()}]

    # By how much the values of the other process differ.
    differs = 0


def test_plain_parameters_with_different_samples_are_refused():
    rh.replica_mesh()
    with refused(rh.ConfigError, "weight, bias of Linear would train on the samples of one process only"):
        ShardedModel(torch.nn.Linear(2, 2), Gradients(), OfTwo([]))


def test_different_tensors_of_one_name_are_refused():
    views = Row({"model": torch.nn.Linear(2, 2, bias=False)}).views
    with refused(rh.StateError, "model.weight", "give tensors of different processes different names"):
        SharedViews(OfTwo([["model.weight", "F32", [3, 2], 24, [[0, 24, 1, 24]]]]), views)


def test_copies_with_different_values_are_refused():
    row = Row({"model": torch.nn.Linear(2, 2, bias=False)})
    other = OfTwo([["model.weight", "F32", [2, 2], 16, [[0, 16, 1, 16]]]])
    assert len(SharedViews(other, row.views).own) == 1
    other.differs = 1
    with refused(rh.StateError, "model.weight", "has other values in process 1", "torch.manual_seed"):
        SharedViews(other, row.views)


def test_tensors_with_missing_parts_are_refused():
    views = Row({"model": torch.nn.Linear(2, 2, bias=False)}).views
    with refused(rh.StateError, "other.weight", "16 bytes, and the processes of a replica have 8 different ones"):
        SharedViews(OfTwo([["other.weight", "F32", [2, 2], 16, [[0, 8, 1, 8]]]]), views)


def test_copies_count_once_in_the_norm():
    mesh = rh.replica_mesh()
    copied = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
    row = Row({"copied": copied}, replica.current())
    other = [["copied", "F32", [2], 8, [[0, 8, 1, 8]]]]
    row.shared_views = SharedViews(OfTwo(other), row.views)
    copied.grad = 3 * copied
    # Each of the two processes adds the half.
    assert ColumnSums(Gradients(), replica.current(), row).own_square([copied]) == pytest.approx(9)
