"""Slices with one process: the tree, equal gradients, and what is refused."""

import contextlib
import types

import pytest
import roundhouse as rh
import torch
from roundhouse.data import Loader, Sampler
from roundhouse.gradients import Gradients
from roundhouse.layout import Layout
from roundhouse.slice_checks import check_slices
from roundhouse.slices import Node, Partial, nodes_of, owned, total
from small_script import DATA, loss_of
from test_commit import LocalReads, Reads


def joined(left, right):
    return f"({left} {right})"


@pytest.mark.parametrize("num_slices", [1, 2, 3, 4, 6, 7, 13, 32])
def test_order_of_a_sum_depends_on_the_tree_alone(num_slices):
    orders = set()
    for world_size in range(1, num_slices + 3):
        nodes = []
        for rank in range(world_size):
            share = owned(num_slices, rank, world_size)
            partial = Partial(num_slices, share, joined)
            for index in range(*share):
                partial.put(Node(0, index), str(index))
                assert len(partial.waiting) <= num_slices.bit_length() + 1
            assert [node for node, _ in partial.waiting] == nodes_of(num_slices, share)
            nodes += partial.waiting
        orders.add(total(num_slices, nodes, joined))
    assert len(orders) == 1
    assert [int(word) for word in orders.pop().replace("(", "").replace(")", "").split()] == list(range(num_slices))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 9])
def test_ranks_divide_the_slices_of_each_step(world_size):
    sampler, whole = Sampler(45, 20, epochs=2, seed=1, slices=7), Sampler(45, 20, epochs=2, seed=1)
    steps = samples = 0
    while (step := whole.plan(steps, samples, (1, 0, 1))) is not None:
        passes = [one for rank in range(world_size) for one in sampler.passes(sampler.plan(steps, samples, (1, rank, world_size)))]
        with_samples = [one for one in passes if one.size]
        assert [one.slice for one in with_samples] == list(range(min(7, step.global_size)))
        assert sum((one.indices for one in with_samples), ()) == step.indices
        assert {one.size for one in with_samples} <= {step.global_size // 7, step.global_size // 7 + 1}
        assert sum(one.ends_step for one in passes) == world_size
        steps, samples = steps + 1, samples + step.global_size
    assert steps == sampler.total_steps


def weights_after(slices, *, passes=1, reduction="mean", weighs=False, kind=torch.float64, scaler=None):
    """The weights of a network after four steps of SGD, with steps that slices divide unevenly."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(kind)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": model, "opt": opt} | ({} if scaler is None else {"scaler": scaler})
    with rh.join(state=state) as job:
        net = job.model(model)
        for batch in job.steps(DATA, job.sampler(40, 17, steps=4, reduction=reduction, slices=slices)):
            x, y, size = batch.x.to(kind), batch.y, len(batch.x)
            value, parts = 0.0, list(zip(x.tensor_split(passes), y.tensor_split(passes)))
            for index, (part_x, part_y) in enumerate(parts):
                with net.no_sync() if index + 1 < len(parts) else contextlib.nullcontext():
                    weights = part_y + 1.0 if weighs else torch.ones(len(part_y))
                    loss = (loss_of(net(part_x), part_y, reduction="none") * weights).sum() / (size if reduction == "mean" else 1)
                    (loss if scaler is None else scaler.scale(loss)).backward()
                value += loss.item()
            job.commit(value, opt, scaler=scaler, max_grad_norm=0.3 if weighs else None, weight=(y + 1.0).sum() if weighs else None)
        assert job.steps_done == 4
        return torch.cat([*(tensor.detach().double().view(-1) for tensor in model.parameters()), torch.tensor([job.loss, job.grad_norm])])


@pytest.mark.parametrize("options", [{}, {"passes": 2}, {"reduction": "sum"}, {"reduction": "sum", "weighs": True}, {"scaler": True}], ids=str)
def test_gradient_of_slices_is_that_of_the_batch(options):
    def trained(slices):
        scaler = {"scaler": torch.amp.GradScaler("cpu", init_scale=64.0)} if options.get("scaler") else {}
        return weights_after(slices, **options | scaler)

    assert (trained(5) - trained(None)).abs().max() < 1e-12


def test_gradients_of_16_bits_are_summed_in_32():
    # bfloat16 has 8 bits: 256 + 1 would be 256.
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    torch.nn.init.zeros_(layer.weight)
    opt = torch.optim.SGD(layer.parameters(), lr=1.0)
    data = torch.utils.data.TensorDataset(torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16))
    with rh.join(state={"layer": layer, "opt": opt}) as job:
        for batch in job.steps(data, job.sampler(3, 3, steps=1, slices=3, reduction="sum", in_order=True)):
            loss = job.model(layer)(batch.x).sum()
            loss.backward()
            job.commit(loss, opt)
    assert layer.weight.item() == -258


def run(parts, body=None, *, model=None, slices=4, options=None, **joins):
    """Trains for two steps with slices. ``body(job, batch, loss)`` ends each slice."""
    joins.setdefault("state", parts.state())
    with rh.join(**joins) as job:
        nets = [job.model(part, **(options or {})) for part in (model or [parts.body, parts.head])]
        for batch in job.steps(DATA, job.sampler(40, 8, steps=2, slices=slices)):
            x = batch.x
            for net in nets:
                x = net(x)
            loss = loss_of(x, batch.y)
            loss.backward()
            (body or (lambda job, batch, loss: job.commit(loss, parts.both)))(job, batch, loss)
    return job


def test_commit_is_true_once_per_step(parts):
    seen = []
    run(parts, lambda job, batch, loss: seen.append((batch.step.slice, batch.step.ends_step, job.commit(loss, parts.both))))
    assert seen == [(0, False, False), (1, False, False), (2, False, False), (3, True, True)] * 2


def test_commit_of_a_slice_reads_nothing_from_the_device(parts):
    seen = []

    def body(job, batch, loss):
        with Reads() as reads, LocalReads() as local_reads:
            job.commit(loss, parts.both, max_grad_norm=0.1)
        seen.append(reads.seen + local_reads.seen)

    run(parts, body)
    assert seen == [[], [], [], ["tolist"]] * 2


def test_slice_draws_its_own_random_numbers(parts):
    drawn = []
    run(parts, lambda job, batch, loss: drawn.append(torch.rand(()).item()) or job.commit(loss, parts.both))
    assert len(set(drawn)) == 8


def test_running_statistics_are_the_mean_of_slices(parts):
    norm = torch.nn.BatchNorm1d(4, momentum=0.5)
    table = torch.nn.Module()
    table.register_buffer("mask", torch.full((2,), float("-inf")))
    begun, means = [], []

    def note(module, inputs):
        begun.append(norm.running_mean.clone())
        means.append(inputs[0].detach().mean(0))

    norm.register_forward_pre_hook(note)
    run(parts, model=[parts.body, norm, parts.head], state=parts.state(norm=norm, table=table))
    assert all(torch.equal(one, begun[4 * (index // 4)]) for index, one in enumerate(begun))
    first = 0.5 * torch.stack(means[:4]).mean(0)
    assert torch.allclose(begun[4], first, atol=1e-6)
    assert torch.allclose(norm.running_mean, 0.5 * first + 0.5 * torch.stack(means[4:]).mean(0), atol=1e-6)
    assert norm.num_batches_tracked.item() == 2 and torch.equal(table.mask, torch.full((2,), float("-inf")))


def test_layer_of_one_slice_is_trained_and_of_none_is_not(parts):
    parts.head.unused = torch.nn.Parameter(torch.ones(3))
    parts.second = torch.optim.AdamW(parts.head.parameters(), lr=0.1)
    before = parts.head.bias.detach().clone()

    def body(job, batch, loss):
        if batch.step.slice != 2:
            parts.head.bias.grad = None
        job.commit(loss, [parts.first, parts.second])

    run(parts, body)
    assert not torch.equal(parts.head.bias, before) and torch.equal(parts.head.unused, torch.ones(3))


@pytest.mark.parametrize("when", ["uncommitted", "committed", "in the next", "kept", "again"])
def test_loop_left_between_slices_is_refused(parts, when):
    before, iterators = [parts.body.weight.detach().clone()], []
    words = "has left the loop between two slices of a step"
    with contextlib.nullcontext() if when == "uncommitted" else pytest.raises(rh.NotCommitted, match=words), rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, steps=2, slices=4)
        for _ in range(2 if when == "again" else 1):
            batches = iter(job.steps(DATA, sampler))
            iterators += [batches] * (when == "kept")
            for batch in batches:
                loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
                loss.backward()
                if when == "uncommitted" or batch.step.slice == 1:
                    break
                assert not job.commit(loss, parts.both)
                if when != "in the next":
                    break
            del batches
    assert job.steps_done == 0 and torch.equal(before[0], parts.body.weight) and parts.body.weight.grad is None


_OTHER = "has another scheduler, scaler, max_grad_norm or weight than"
REFUSED = {
    "manual": ({"gradients": "manual"}, None, 'with rh.join\\(gradients="manual"\\)'),
    "seeds": ({"seed_each_step": False}, None, "with rh.join\\(seed_each_step=False\\)"),
    "options": ({"options": {"find_unused_parameters": True}}, None, "these are options of DDP"),
    "sum": ({}, lambda job, loss, parts: job.sum([1.0]), "job.sum within a step of slices"),
    "alone": ({}, lambda job, loss, parts: job.alone(int), "job.alone within a step of slices"),
    "clipping": ({}, lambda job, loss, parts: job.commit(loss, parts.both, max_grad_norm=1.0 if job.first else None), _OTHER),
    "scheduler": ({}, lambda job, loss, parts: job.commit(loss, parts.both, parts.rate if job.first else None), _OTHER),
    "optimizers": ({}, lambda job, loss, parts: job.commit(loss, parts.both[: 1 + job.first]), "trains other parameters than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inexact_scripts_with_slices_are_refused(parts, case):
    joins, call, words = REFUSED[case]
    before = parts.body.weight.detach().clone()
    parts.rate = torch.optim.lr_scheduler.StepLR(parts.first, 1)
    joins = {"state": parts.state(rate=parts.rate)} | joins

    def body(job, batch, loss):
        job.first = batch.step.slice == 0
        (call or (lambda job, loss, parts: job.commit(loss, parts.both)))(job, loss, parts)

    with pytest.raises(rh.ConfigError, match=words):
        run(parts, body, **joins)
    assert torch.equal(before, parts.body.weight)


@pytest.mark.parametrize("kind", ["sync", "sparse", "weight"])
def test_layers_and_weights_that_cannot_be_summed_are_refused(kind):
    table = torch.nn.Embedding(4, 2, sparse=kind == "sparse")
    layers = [table, torch.nn.SyncBatchNorm(2)] if kind == "sync" else [table]
    model = torch.nn.Sequential(*layers)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    before = table.weight.detach().clone()
    words = {"sync": "with SyncBatchNorm", "sparse": "is sparse: leave out sparse=True", "weight": "the weight is nan; give"}[kind]
    with pytest.raises(rh.ConfigError, match=words), rh.join(state={"model": model, "opt": opt}) as job:
        net = job.model(model)
        for batch in job.steps(DATA, job.sampler(40, 8, steps=2, slices=2, reduction="sum")):
            loss = loss_of(net(batch.y), batch.y, reduction="sum")
            loss.backward()
            job.commit(loss, opt, weight=torch.tensor(-1.0 if batch.step.slice else 4.0))
    assert torch.equal(before, table.weight)


def test_unscaling_by_the_script_is_refused(parts):
    scaler = torch.amp.GradScaler("cpu")

    def body(job, batch, loss):
        scaler.unscale_(parts.first)
        job.commit(loss, parts.both, scaler=scaler)

    with rh.join(state=parts.state(scaler=scaler)) as job, pytest.raises(rh.ConfigError, match="scaler.unscale_ in a step with slices"):
        for batch in job.steps(DATA, job.sampler(40, 8, steps=1, slices=2)):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            scaler.scale(loss).backward()
            body(job, batch, loss)


def test_rank_without_a_slice_reads_as_many_samples():
    # BatchNorm refuses a single one.
    sampler = Sampler(40, 9, steps=1, slices=2)
    step = sampler.plan(0, 0, (1, 0, 3))
    assert step.indices == () and len(Loader(DATA, sampler).load(step, 0)[0]) == 5


@pytest.mark.parametrize("slices", [0, 4097])
def test_number_of_slices_has_bounds(slices):
    with pytest.raises(rh.ConfigError, match=f"slices is {slices}; it has to be from 1 to 4096"):
        Sampler(40, 8, epochs=1, slices=slices)


@pytest.mark.parametrize("name", ["pp", "cp"])
def test_slices_of_copies_with_own_gradients_are_refused(name):
    replica = types.SimpleNamespace(layout=Layout([name], [2], []))
    with pytest.raises(rh.ConfigError, match="leave out slices"):
        check_slices([], replica, Gradients(), is_manual=False, seeds=True)
    replica.layout = Layout([name], [1], [])
    check_slices([], replica, Gradients(), is_manual=False, seeds=True)
