"""Scripts outside of a job, which train alone."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest
from conftest import difference, load
from world import World

SCRIPTS = pathlib.Path(__file__).parent / "scripts"

HEAD = """
import sys, torch, roundhouse as rh
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randint(2, (40,)))
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loss_of = torch.nn.functional.cross_entropy
"""
LOOP = """
with rh.join(state={"model": model, "opt": opt}) as job:
    for batch in job.steps(data, job.sampler(40, 8, epochs=1)):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        loss.backward()
        """
GROWING = """
import tempfile

class Losses:
    def __init__(self):
        self.all = []

    def state_dict(self):
        return {"all": self.all}

    def load_state_dict(self, loaded):
        self.all = loaded["all"]

losses = Losses()
state = {"model": model, "opt": opt, "losses": losses}
with rh.join(state=state, checkpoint_dir=tempfile.mkdtemp(), checkpoint_every_steps=2) as job:
    for batch in job.steps(data, job.sampler(40, 8, epochs=1)):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        loss.backward()
        if job.commit(loss):
            losses.all.append(loss.item())
"""
SWITCHED_OFF = """
scaler = torch.amp.GradScaler("cpu", enabled=False)
with rh.join(state={"model": model, "opt": opt, "scaler": scaler}) as job:
    for batch in job.steps(data, job.sampler(40, 8, epochs=1)):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        scaler.scale(loss).backward()
        job.commit(loss * float("nan"), opt, scaler=scaler)
"""


def run(source, *arguments):
    """Runs `python -W error::UserWarning -c SOURCE ARGUMENTS`."""
    with tempfile.TemporaryDirectory() as directory:
        output, errors = (pathlib.Path(directory, name) for name in ("output", "errors"))
        script = World.starter.start(arguments, os.environ, output, errors, source, ["UserWarning"])
        return subprocess.CompletedProcess("-c", script.wait(300), output.read_text(), errors.read_text())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD + LOOP + "pass", "NotCommitted: step 1: the body of the loop has ended without job.commit"),
        (HEAD + LOOP + "opt.step()", "NotCommitted: optimizer.step() outside of job.commit"),
        (HEAD + LOOP + "job.commit(loss, torch.optim.SGD(model.parameters(), lr=1))", "ConfigError: job.commit got a new SGD"),
        (
            HEAD + LOOP + "torch.optim.Adam(model.parameters()).step()",
            "NotCommitted: Adam.step() of an optimizer that is not in rh.join(state=...) would change model.weight, model.bias",
        ),
        (
            HEAD + LOOP.replace(', "opt": opt', "") + "job.commit(loss)",
            "ConfigError: job.commit without an optimizer, and none is in rh.join(state=...)",
        ),
        (HEAD + GROWING, "StateError: losses.all.0 of rh.join(state=...) has changed its structure"),
        (HEAD + LOOP + "job.commit(loss * float('nan'), opt)", "Diverged: step 1"),
        (HEAD + LOOP + "rh.join(state={'model': model})", "AlreadyJoined: rh.join was called twice"),
        (HEAD + "rh.join(state={'model': 1})", "StateError: state['model'] is a int"),
        (HEAD + "with rh.join(state={'model': model}) as job: pass", "NotCommitted: the script has ended without a loop"),
        (
            HEAD + "with rh.join(state={'other': torch.nn.Linear(1, 1)}) as job: job.model(model)",
            "ConfigError: job.model: the module is not in rh.join(state=...)",
        ),
        (
            HEAD + "with rh.join(state={'model': model}) as job: job.model(model, init_sync=True)",
            "ConfigError: job.model: init_sync: the job decides that in each generation",
        ),
        (HEAD + LOOP + "opt.zero_grad(); job.commit(loss, opt)", "NotCommitted: no parameter of the optimizer has a gradient"),
        (
            HEAD + LOOP.replace("job.model(model)", "model") + "job.commit(loss, opt)",
            "NotCommitted: the loss was computed without job.model(model)",
        ),
        (HEAD + LOOP + "job.commit(opt)", "ConfigError: job.commit(loss, optimizer, ...): the first argument is the loss, not the"),
        (HEAD + LOOP + "job.commit(1.0, loss)", "the second argument has to be an optimizer, not a Tensor"),
        (HEAD + LOOP + "job.save_result('weights')", "NotCommitted: job.save_result before the last step"),
        (HEAD + LOOP + "job.commit(loss, opt); job.save_result('w')", "NotCommitted: job.save_result before the last step"),
        (HEAD + "rh.join(state={'model': model}).sum([1])", "ConfigError: job.sum before the loop over job.steps"),
        (HEAD + SWITCHED_OFF, "Diverged: step 1"),
    ],
)
def test_mistake_raises_an_exception_with_advice(source, words):
    ended = run(source)
    assert ended.returncode == 1 and words in ended.stderr, ended.stderr


LEFT = """
class Bar:
    def __init__(self, steps):
        self.steps = steps

    def __iter__(self):
        for step in self.steps:
            yield step

with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(torch.compile(model, backend="eager"))
    sampler = job.sampler(40, 8, epochs=9)
    steps = job.steps(data, sampler)
    for batch in steps:
        loss = loss_of(net(batch.x), batch.y)
        loss.backward()
        job.commit(loss, opt)
        if batch.step.number == 3:
            break
    """


# The bar works like that of tqdm.
@pytest.mark.parametrize("held", ["job.steps(data, sampler)", "steps", "Bar(steps)", "bar"])
def test_result_can_be_saved_after_leaving_the_loop(tmp_path, held):
    source = LEFT.replace("for batch in steps", f"bar = Bar(steps)\n    for batch in {held}")
    ended = run(HEAD + source + 'print("saved after", job.steps_done, job.save_result(sys.argv[1]))', tmp_path / "weights")
    assert ended.returncode == 0 and "saved after 3" in ended.stdout, ended.stderr
    assert sorted(load(tmp_path / "weights")) == ["bias", "weight"]


def test_result_contains_only_committed_steps(tmp_path):
    source = """
model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
with rh.join(state={"model": model, "opt": opt}) as job:
    for batch in job.steps(data, job.sampler(40, 8, epochs=1)):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        loss.backward()
        if batch.step.number == 3:
            break
        job.commit(loss, opt)
        committed = model[0].running_mean.clone()
    # The names in the file are those of the module, whatever it was given as.
    job.save_result(sys.argv[1], job.model(model))
assert torch.equal(model[0].running_mean, committed) and model[1].weight.grad is None
"""
    ended = run(HEAD + source, tmp_path / "weights")
    assert ended.returncode == 0, ended.stderr
    assert load(tmp_path / "weights")["0.num_batches_tracked"] == 2


def test_alternating_optimizers_use_only_their_own_gradients():
    source = """
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
opts = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
with rh.join(state={"model": model, "first": opts[0], "second": opts[1]}) as job:
    for batch in job.steps(data, job.sampler(40, 8, epochs=1)):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        loss.backward()
        job.commit(loss, opts[batch.step.number % 2])
        assert all(parameter.grad is None for parameter in model.parameters())
"""
    ended = run(HEAD + source)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("for batch in steps: pass", "NotCommitted: step 4: the body of the loop has ended without job.commit"),
        ("job.save_result(sys.argv[1])\n    for batch in steps: pass", "NotCommitted: a loop over job.steps after job.save"),
    ],
)
def test_left_loop_can_continue_until_the_result_is_saved(tmp_path, source, words):
    ended = run(HEAD + LEFT + source, tmp_path / "weights")
    assert words in ended.stderr, ended.stderr


SAVED_AT_EACH_STEP = """
with rh.join(state={"model": model, "opt": opt}, checkpoint_dir=sys.argv[1], checkpoint_every_steps=1) as job:
    for batch in job.steps(data, job.sampler(40, 8, steps=1_000_000)):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        loss.backward()
        job.commit(loss, opt)
        print("step", batch.step.number, flush=True)
"""


def test_ctrl_c_ends_a_script(tmp_path):
    command = [sys.executable, "-c", HEAD + SAVED_AT_EACH_STEP, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        next(line for line in script.stdout if line.startswith("step 5"))
        script.send_signal(signal.SIGINT)
        _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors, errors


def test_interrupted_notebook_can_join_again(tmp_path):
    source = """
import gc, weakref

def train(steps):
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with rh.join(state={"model": model, "opt": opt}, checkpoint_dir=sys.argv[1], checkpoint_every_steps=1) as job:
        for batch in job.steps(data, job.sampler(40, 8, steps=steps)):
            loss = loss_of(job.model(model)(batch.x), batch.y)
            loss.backward()
            job.commit(loss, opt)
            if not kept:
                kept.append(weakref.ref(model))
                raise KeyboardInterrupt

kept = []
for _ in range(2):
    try:
        train(5)
    except KeyboardInterrupt:
        print("interrupted")
    gc.collect()
assert [model() for model in kept] == [None], kept
"""
    ended = run(HEAD + source, tmp_path)
    assert ended.returncode == 0 and ended.stdout.count("interrupted") == 1, ended.stdout + ended.stderr


def test_ctrl_c_while_copying_the_state_is_an_interrupt(tmp_path):
    interrupted = """
from roundhouse.state import Row

def interrupted(*_):
    raise KeyboardInterrupt

Row.copy_out = interrupted
"""
    ended = run(HEAD + interrupted + SAVED_AT_EACH_STEP, tmp_path)
    assert ended.returncode == -signal.SIGINT and "KeyboardInterrupt" in ended.stderr, ended.stderr


def test_evaluations_run_between_accumulated_steps(tmp_path):
    ended = run(
        HEAD
        + """
def right(batch):
    x, y = batch
    scores = model(x)
    assert not model.training and not torch.is_grad_enabled()
    return {"loss": float(loss_of(scores, y, reduction="sum")), "accuracy": float((scores.argmax(1) == y).sum())}

seen = []
evaluation = rh.Evaluation(data, right, batch_size=7, then=seen.append)
with rh.join(state={"model": model, "opt": opt}, checkpoint_dir=sys.argv[1]) as job:
    net = job.model(model)
    for batch in job.steps(data, job.sampler(40, 8, epochs=3), evaluation=evaluation):
        assert model.training
        loss = 0.0
        for part in range(2):
            x, y = batch.x[part::2], batch.y[part::2]
            own = loss_of(net(x), y) * len(x) / batch.step.size
            own.backward()
            loss += own.detach()
        assert job.commit(loss, opt, max_grad_norm=1.0)
    print("evaluated", len(seen), sorted(seen[-1]), job.steps_done)
""",
        tmp_path,
    )
    assert "evaluated 3 ['accuracy', 'loss']" in ended.stdout, ended.stderr


def test_step_skipped_by_a_scaler_is_committed_as_skipped(tmp_path):
    ended = run(
        HEAD
        + """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
with rh.join(state={"model": model, "opt": opt, "scaler": scaler}, checkpoint_dir=sys.argv[1]) as job:
    for batch in job.steps(data, job.sampler(40, 8, epochs=1)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(job.model(model)(batch.x), batch.y)
        scaler.scale(loss).backward()
        before = model.weight.detach().clone()
        if batch.step.number == 3:
            model.weight.grad[0, 0] = float("inf")
        assert job.commit(loss, opt, scaler=scaler)
        assert torch.equal(before, model.weight) == (batch.step.number == 3)
    print("scale", scaler.get_scale())
""",
        tmp_path,
    )
    assert "scale 2.0" in ended.stdout, ended.stderr
    ledger = (tmp_path / "ledger" / "gen-0000000001.jsonl").read_text()
    assert ledger.count("kipped") == 1, ledger


def test_script_continues_from_its_checkpoint(tmp_path, undisturbed):
    for steps in (25, 60):
        source = (SCRIPTS / "train.py").read_text()
        joins = "with rh.join(state=state)"
        assert joins in source
        source = source.replace(joins, "with rh.join(state=state, checkpoint_dir=sys.argv[3], checkpoint_every_steps=10)")
        ended = run(source, steps, tmp_path / "weights", tmp_path)
        assert ended.returncode == 0, ended.stderr
    assert "step 25 of generation 1" in ended.stdout
    assert difference(undisturbed(60), load(tmp_path / "weights")) <= 1e-6


def test_callbacks_see_the_steps_of_a_checkpoint(tmp_path):
    source = HEAD + """
with rh.join(state={"model": model, "opt": opt}, checkpoint_dir=sys.argv[1]) as job:
    job.on_generation(lambda job: print("callback after", job.steps_done))
    for batch in job.steps(data, job.sampler(40, 8, steps=int(sys.argv[2]))):
        loss = loss_of(job.model(model)(batch.x), batch.y)
        loss.backward()
        job.commit(loss, opt)
        assert job.steps_done == batch.step.number
"""
    for steps, before in [(5, 0), (8, 5)]:
        ended = run(source, tmp_path, steps)
        assert ended.returncode == 0 and f"callback after {before}" in ended.stdout, ended.stdout + ended.stderr
