"""Trains a tiny model for six steps, or for twenty with ``each``. Its callbacks or metrics do not
do the same on all ranks. Arguments: the directory of its output, and the names of features. With
``plain`` it uses the Trainer of transformers, in one process."""

import json
import os
import pathlib
import signal
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    import roundhouse.hf
from small_trainer import Tiny, arguments, samples


class Model(Tiny):
    def forward(self, x, labels=None, num_items_in_batch=None):
        if self.training and os.environ.get("STOP_AFTER") == str(trainer.state.global_step):
            # Once: a test lets it continue.
            del os.environ["STOP_AFTER"]
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().forward(x, labels)


def rank():
    return 0 if IS_PLAIN or trainer.job is None else trainer.job.rank


def metrics(_):
    if trainer.state.global_step == 2 and f"raise-{rank()}" in USES:
        raise ValueError("no metric")
    if "names" in USES:
        return {"width": 1.0, **({"first": 2.0, "length": 3} if rank() == 0 else {"second": 4.0})}
    if "values" in USES:
        others = {"flag": True, "count": 7, "large": 2**60 + 1, "word": "a", "parts": [1, {"of": None}], "none": None}
        return {"missing": 1.5 if rank() == 0 else float("nan"), "infinite": float("-inf"), **others, "rank": rank()}
    return {"rank": rank()}


def masked(rows):
    """A batch with random zeros, also in one process of the loader."""
    points = torch.stack([row["x"] for row in rows])
    return {"x": points * (torch.rand(points.shape) > 0.3), "labels": torch.stack([row["labels"] for row in rows])}


class Calls(transformers.TrainerCallback):
    found = []

    def on_step_end(self, args, state, control, **_):
        is_second = state.global_step == 2
        if is_second and ("alone" in USES and rank() == 0 or "other" in USES and rank() == 1):
            self.found.append(trainer.evaluate()["eval_loss"])
        if is_second and ("predict" in USES or "other" in USES) and rank() == 0:
            self.found.append(trainer.predict(samples()[:3]).metrics["test_loss"])
        if "each" in USES:
            self.found.append(trainer.evaluate()["eval_loss"])
        if is_second and any(use.startswith("raise-") for use in USES):
            try:
                trainer.evaluate()
            except ValueError as error:
                self.found.append(str(error))


schedule = {"eval_strategy": "steps", "eval_steps": 3} if {"names", "values", "random"} & set(USES) else {}
options = {"max_steps": 20 if "each" in USES else 6, "per_device_train_batch_size": 4 if IS_PLAIN else 2, "per_device_eval_batch_size": 2}
options |= {"report_to": "none", "dataloader_num_workers": int("processes" in USES), "prediction_loss_only": "loss" in USES}
options |= {"learning_rate": 0.0 if "random" in USES else 0.1, "lr_scheduler_type": "constant"}
kind = transformers.Trainer if IS_PLAIN else roundhouse.hf.Trainer
trainer = kind(
    model=Model(),
    args=arguments(OUT / "exports", **options, **schedule),
    train_dataset=samples(),
    eval_dataset=samples(),
    compute_metrics=metrics,
    data_collator=masked if "random" in USES else None,
    callbacks=[Calls()],
    **({} if IS_PLAIN else {"global_batch_size": 4}),
)
trainer.train()
OUT.mkdir(exist_ok=True)
if rank() == 0:
    torch.save(trainer.model.state_dict(), OUT / "weights.pt")
found = {"log": trainer.state.log_history, "found": Calls.found, "generation": 1 if IS_PLAIN else trainer.job.generation}
(OUT / f"rank-{rank()}.json").write_text(json.dumps(found))
