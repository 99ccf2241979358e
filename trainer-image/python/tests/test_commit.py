"""The checks and results of ``job.commit`` with one process."""

import copy

import pytest
import roundhouse as rh
import torch
from roundhouse.digests import digest_of, portions
from small_script import DATA, loss_of, train


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda parts: lambda job, x: parts.head(job.model(parts.body)(x)),
            "the gradients of head.weight, head.bias were not summed over the ranks in this step: compute the loss with",
        ),
        (
            # The wrapped model is not the model that is called.
            lambda parts: lambda job, x: (job.model(parts.body), parts.head(parts.body(x)))[1],
            "no gradients were summed over the ranks in this step: compute the loss with job.model",
        ),
        (
            lambda parts: lambda job, x: job.model(parts.head)(job.model(parts.body).eval()(x)),
            "the gradients of body.weight, body.bias were not summed over the ranks in this step: .* in training mode",
        ),
    ],
)
def test_unsummed_gradients_are_an_error_with_one_worker(parts, loss, words):
    with pytest.raises(rh.NotCommitted, match=words):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss(parts))


@pytest.mark.parametrize("is_first_summed", [False, True])
def test_last_pass_in_no_sync_is_an_error_with_one_worker(parts, is_first_summed):
    def loss(job, x):
        if is_first_summed:
            loss_of(job.model(parts.head)(job.model(parts.body)(x)), torch.zeros(len(x), dtype=torch.long)).backward()
        with job.model(parts.body).no_sync():
            return job.model(parts.head)(job.model(parts.body)(x))

    with pytest.raises(rh.NotCommitted, match="outside of no_sync"):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss)


def test_gradients_of_one_worker_are_those_of_trained_models(parts):
    weights = [parts.body.weight.detach().clone()]

    def body(job, loss):
        # Every other step freezes a part. One or both optimizers step.
        is_frozen = not parts.body.weight.requires_grad
        job.commit(loss, parts.both if is_frozen else parts.first)
        weights.append(parts.body.weight.detach().clone())
        assert torch.equal(weights[-2], weights[-1]) is is_frozen
        parts.body.requires_grad_(job.steps_done % 2 == 0)

    def loss(job, x):
        with torch.no_grad():
            parts.head(parts.body(x))
        with job.model(parts.body).no_sync():
            loss_of(job.model(parts.head)(job.model(parts.body)(x)), torch.zeros(len(x), dtype=torch.long)).backward()
        return job.model(parts.head)(job.model(parts.body)(x))

    train(parts, body, loss=loss, steps=4)
    assert len(weights) == 5


@pytest.mark.parametrize("is_own", [True, False])
def test_optimizer_steps_only_in_commit(parts, is_own):
    other = torch.optim.Adam(parts.head.parameters())
    outside = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)

    def body(job, loss):
        assert job.commit(loss, parts.both)
        outside.step()
        (parts.first if is_own else other).step()

    own = r"optimizer.step\(\) outside of job.commit: .* remove the call"
    foreign = r"Adam.step\(\) of an optimizer that is not in .* head.weight"
    words = own if is_own else foreign
    with pytest.raises(rh.NotCommitted, match=words):
        train(parts, body)


@pytest.mark.parametrize("is_own", [False, True])
def test_script_may_step_foreign_optimizers_after_the_commit(parts, is_own):
    other = torch.optim.SGD(parts.head.parameters(), lr=0.1)
    weights = []

    def body(job, loss):
        assert job.commit(loss, [])
        weights.append(parts.head.weight.detach().clone())
        (parts.first if is_own else other).step()
        assert not torch.equal(weights[-1], parts.head.weight)
        other.zero_grad()

    if is_own:
        with pytest.raises(rh.NotCommitted, match=r"optimizer.step\(\) outside of job.commit"):
            train(parts, body)
        return
    state = {"body": parts.body, "head": parts.head}
    train(parts, body, state=state)
    # The permission ends with the step.
    with pytest.raises(rh.NotCommitted, match=r"SGD.step\(\) of an optimizer that is not in"):
        train(parts, lambda job, loss: (other.step if job.steps_done else lambda: body(job, loss))(), state=state)


def test_foreign_optimizer_may_list_frozen_parameters(parts):
    probe = torch.nn.Linear(4, 2)
    parts.body.requires_grad_(False)
    other = torch.optim.Adam([*parts.body.parameters(), *probe.parameters()])

    def body(job, loss):
        loss_of(probe(torch.ones(1, 4)), torch.zeros(1, dtype=torch.long)).backward()
        other.step()
        job.commit(loss, parts.second)

    train(parts, body)
    # An optimizer steps parameters with a gradient, frozen or not.
    parts.body.weight.grad = torch.ones(4, 4)
    with pytest.raises(rh.NotCommitted, match="Adam.* would change body.weight: add it to the state"):
        train(parts, body)


def test_parameter_in_two_optimizers_of_a_commit_is_named(parts):
    third = torch.optim.SGD([parts.head.bias], lr=0.1)
    state = parts.state(third=third)
    with pytest.raises(rh.ConfigError, match="job.commit: head.bias would be stepped by two optimizers in one step"):
        train(parts, lambda job, loss: job.commit(loss), state=state)
    train(parts, lambda job, loss: job.commit(loss, [parts.first, (third, parts.second)[job.steps_done]]), state=state)
    # Frozen parameters are not stepped.
    parts.head.bias.requires_grad_(False)
    train(parts, lambda job, loss: job.commit(loss, parts.both + [third]), state=state)


def test_optimizers_step_freely_after_the_loop(parts):
    def loop(job, sampler, leaves):
        for batch in job.steps(DATA, sampler):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both)
            if leaves:
                break

    with rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, steps=3)
        for leaves in (True, False):
            loop(job, sampler, leaves)
            parts.first.step()


def test_weight_gives_the_mean_over_tokens(parts):
    tokens = torch.randint(1, 7, (40,), generator=torch.Generator().manual_seed(2)).float()
    data = torch.utils.data.TensorDataset(*DATA.tensors, tokens)
    initial = copy.deepcopy(parts)

    def trained(parts, step_of):
        with rh.join(state=parts.state()) as job:
            net = torch.nn.Sequential(job.model(parts.body), job.model(parts.head))
            for batch in job.steps(data, job.sampler(40, 8, epochs=2, reduction="sum")):
                x, y, own = batch
                step_of(job, loss_of(net(x), y, reduction="none") * own, own)
        return parts.body.weight.detach()

    def weighted(job, losses, own):
        losses.sum().backward()
        job.commit(losses.sum(), parts.both, max_grad_norm=0.1, weight=own.sum())

    def mean(job, losses, own):
        (losses.sum() / own.sum()).backward()
        job.commit(losses.sum() / own.sum(), [initial.first, initial.second], max_grad_norm=0.1)

    # In a deep copy, the optimizers train the copied parameters.
    assert initial.first.param_groups[0]["params"][0] is initial.body.weight
    assert torch.allclose(trained(parts, weighted), trained(initial, mean), atol=1e-6)
    with pytest.raises(rh.ConfigError, match='a weight is for gradients of sums: give job.sampler reduction="sum"'):
        train(parts, lambda job, value: job.commit(value, parts.both, weight=3))


class Reads(torch.overrides.TorchFunctionMode):
    """Records reads of numbers from tensors, at which the host would wait for a GPU."""

    NAMES = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "cpu"}

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self.NAMES:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


class LocalReads(torch.utils._python_dispatch.TorchDispatchMode):
    """Records reads within PyTorch's own functions."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("most", [None, 1.0])
@pytest.mark.parametrize(("gradients", "weighs"), [("ddp", False), ("ddp", True), ("manual", False)])
def test_commit_reads_once_from_the_device(parts, gradients, most, weighs):
    options = {"gradients": gradients, "state": parts.state()}
    seen = []
    with rh.join(**options) as job:
        nets = [parts.body, parts.head] if gradients == "manual" else [job.model(parts.body), job.model(parts.head)]
        for batch in job.steps(DATA, job.sampler(40, 8, steps=3, reduction="sum" if weighs else "mean")):
            loss = loss_of(nets[1](nets[0](batch.x)), batch.y, reduction="sum" if weighs else "mean")
            loss.backward()
            weight = {"weight": (batch.y >= 0).sum()} if weighs else {}
            with Reads() as reads, LocalReads() as local_reads:
                assert job.commit(loss, parts.both, max_grad_norm=most, **weight)
            seen.append(reads.seen + local_reads.seen)
    assert seen == [["tolist"]] * 3


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e306, -1.0, torch.tensor(float("nan")), torch.tensor(-3), torch.ones(2)])
def test_invalid_weight_is_an_error_before_the_update(parts, weight):
    before = parts.body.weight.detach().clone()
    words = "the weight has the shape" if torch.is_tensor(weight) and weight.numel() > 1 else "the weight is (nan|inf|1e\\+306|-1.0|-3.0); give"
    with pytest.raises(rh.ConfigError, match=words), rh.join(state=parts.state()) as job:
        net = torch.nn.Sequential(job.model(parts.body), job.model(parts.head))
        for batch in job.steps(DATA, job.sampler(40, 8, steps=1, reduction="sum")):
            loss = loss_of(net(batch.x), batch.y, reduction="sum")
            loss.backward()
            job.commit(loss, parts.both, weight=weight)
    assert torch.equal(before, parts.body.weight)


@pytest.mark.parametrize("most", [None, 0.1])
def test_job_has_loss_and_norm_after_a_commit(parts, most):
    seen = []

    def body(job, value):
        norm = torch.cat([p.grad.flatten() for p in [*parts.body.parameters(), *parts.head.parameters()]]).norm()
        assert (job.loss, job.grad_norm) == (seen[-1] if seen else (None, None))
        assert job.commit(value, parts.both, max_grad_norm=most)
        seen.append((job.loss, job.grad_norm))
        assert seen[-1] == pytest.approx((value.item(), norm.item()), rel=1e-5)

    train(parts, body, steps=3)
    assert len(set(seen)) == 3


def test_portions_copy_only_small_tensors_on_a_cpu():
    small, large = [torch.randn(3) for _ in range(4)], torch.randn(64 << 8)
    first, rest = portions([*small[:2], large, *small[2:]])
    assert first.data_ptr() == large.data_ptr() and first.numel() == large.numel() * 4
    assert torch.equal(rest, torch.cat(small).view(torch.uint8))


def test_digest_of_gradients_detects_each_bit():
    generator = torch.Generator().manual_seed(4)
    kinds = [((7, 3), torch.float32), ((5,), torch.bfloat16), ((2, 2), torch.float64)]
    gradients = [torch.randn(*shape, generator=generator).to(kind) for shape, kind in kinds]
    cpu = torch.device("cpu")
    for parts_of in (lambda: gradients, lambda: list(portions(gradients))):
        before = float(digest_of(parts_of(), cpu))
        assert before == int(before) and 0 <= before < 2**52
        for gradient in gradients:
            row = gradient.view(-1).view(torch.uint8)
            for bit in range(8 * len(row)):
                row[bit // 8] ^= 1 << bit % 8
                assert float(digest_of(parts_of(), cpu)) != before, bit
                row[bit // 8] ^= 1 << bit % 8
    assert digest_of([], cpu) == 0
