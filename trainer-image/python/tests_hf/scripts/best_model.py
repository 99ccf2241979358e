"""Trains a tiny model for eight steps with an evaluation and an export after each second one, and
loads the best model at the end. Arguments: the directory of its output, and the names of features:
``best-N`` is the step with the best score, and the evaluation before it has the second best one.
With ``plain`` it uses the Trainer of transformers, in one process."""

import json
import os
import pathlib
import sys
import time

import safetensors.torch
import torch
import transformers

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    import roundhouse.hf
IS_SHARDED = "sharded" in USES and not IS_PLAIN
if IS_SHARDED:
    mesh = roundhouse.replica_mesh()

[BEST] = [int(use.removeprefix("best-")) for use in USES if use.startswith("best-")]
torch.manual_seed(2)
torch.set_default_dtype(torch.float64)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 64), torch.nn.Linear(64, 3)

    def forward(self, x, labels=None):
        scores = self.last(torch.tanh(self.first(x)))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


model = Tiny()
samples = [{"x": torch.randn(4), "labels": torch.tensor(index % 3)} for index in range(24)]
if IS_SHARDED:
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)


def is_doomed(where):
    """Whether a test ends rank 0 here, after the step of the best model."""
    is_here = os.environ.get("KILL_WHERE") == where and trainer.state.global_step == BEST
    return is_here and not IS_PLAIN and trainer.job is not None and trainer.job.rank == 0


def score(_):
    if is_doomed("evaluation"):
        os.kill(os.getpid(), 9)
    return {"score": {BEST - 2: 1.0, BEST: 2.0}.get(trainer.state.global_step, 0.0)}


save_file, make_directories = safetensors.torch.save_file, os.makedirs


def save(tensors, path, *args, **kwargs):
    if is_doomed("half a file"):
        save_file(tensors, path, *args, **kwargs)
        os.truncate(path, os.path.getsize(path) // 2)
    if is_doomed("half a file") or is_doomed("empty directory"):
        os.kill(os.getpid(), 9)
    return save_file(tensors, path, *args, **kwargs)


def make_slowly(*args, **kwargs):
    time.sleep(0.05)
    return make_directories(*args, **kwargs)


safetensors.torch.save_file = save
if "slow" in USES:
    # As a volume over a network.
    os.makedirs = make_slowly
options = {
    "max_steps": 8,
    "learning_rate": 0.1,
    "optim": "sgd",
    "train_sampling_strategy": "sequential",
    "per_device_train_batch_size": 8 if IS_PLAIN else 4,
    "per_device_eval_batch_size": 4,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 4 if "rarely" in USES else 2,
    "save_total_limit": 1 if "limit" in USES else None,
    "load_best_model_at_end": True,
    "metric_for_best_model": "score",
    "greater_is_better": True,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
kind = transformers.Trainer if IS_PLAIN else roundhouse.hf.Trainer
trainer = kind(
    model=model,
    args=transformers.TrainingArguments(str(OUT / "exports"), **options),
    train_dataset=samples,
    eval_dataset=samples[:12],
    compute_metrics=score,
    **({} if IS_PLAIN else {"global_batch_size": 8}),
)
result = trainer.train()
trainer.save_model(str(OUT / "model"))
rank = 0 if IS_PLAIN else trainer.job.rank
own = {name: getattr(weight, "_local_tensor", weight) for name, weight in model.state_dict().items()}
torch.save(own, OUT / f"weights-{rank}.pt")
if trainer.is_world_process_zero():
    torch.save(safetensors.torch.load_file(OUT / "model" / "model.safetensors"), OUT / "weights.pt")
found = {"log": trainer.state.log_history, "last": result.global_step, "best": trainer.state.best_model_checkpoint}
(OUT / f"rank-{rank}.json").write_text(json.dumps(found))
