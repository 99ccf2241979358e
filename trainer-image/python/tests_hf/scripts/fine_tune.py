"""Fine-tunes a tiny GPT-2 in 64 bits on sentences of different lengths. Arguments: the directory of
its output, and the names of features. STEPS: the number of steps. With ``plain`` it uses the
Trainer of transformers, in one process, which makes the same steps."""

import json
import os
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file
from torch.distributed.tensor import parallel as tensor_parallel

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    import roundhouse.hf
IS_SHARDED = "sharded" in USES
if IS_SHARDED:
    mesh = roundhouse.replica_mesh("tp" if "tp" in USES else "shard")

# The sentences have padding, which no loss counts, so ranks have different numbers of tokens.
BATCH, NUM_SAMPLES, NUM_WORDS = 6, 32, 11
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
words = torch.randint(17, (NUM_SAMPLES, NUM_WORDS))
lengths = torch.randint(3, NUM_WORDS + 1, (NUM_SAMPLES,)).tolist()
if "repeated" in USES:
    # All words of the second one of two ranks are the same, which proves nothing.
    words[[*(row for row in range(NUM_SAMPLES) if row % BATCH >= BATCH // 2), NUM_SAMPLES - 1]] = 3


if "unlabelled" in USES:
    # The loss ignores the first label, so these sentences have none.
    lengths[::3] = [1] * len(lengths[::3])


def sample(index):
    labels = words[index].clone()
    labels[lengths[index] :] = -100
    return {"input_ids": words[index], "attention_mask": (labels != -100).long(), "labels": labels}


samples = [sample(index) for index in range(NUM_SAMPLES)]
evaluated = samples[:20]
config = transformers.GPT2Config(
    n_layer=1, n_head=2, n_embd=8, vocab_size=17, n_positions=NUM_WORDS, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
)
model = transformers.GPT2LMHeadModel(config)


class NextWord(torch.nn.Module):
    """A model of its own, which predicts each word from the one before it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(17, 8), torch.nn.Linear(8, 17)

    def forward(self, input_ids, labels=None, **_):
        scores = self.head(self.embedding(input_ids))
        wanted = labels[:, 1:].flatten()
        losses = torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), wanted.clamp(0), reduction="none")
        counts = (wanted != -100).double()
        # The gradient of a mean over no labels is not a number.
        return {"loss": (losses * counts).sum() / counts.sum(), "logits": scores}


if "repeated" in USES or "unlabelled" in USES:
    model = NextWord()
if "tp" in USES and IS_SHARDED:
    head = tensor_parallel.ColwiseParallel(output_layouts=torch.distributed.tensor.Replicate())
    tensor_parallel.parallelize_module(model, mesh, {"head": head})
elif IS_SHARDED:
    for block in model.transformer.h if "unlabelled" not in USES else ():
        torch.distributed.fsdp.fully_shard(block, mesh=mesh)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)


def token_loss(outputs, labels, num_items_in_batch=None):
    """The loss of the model in 64 bits: its own one computes in 32 bits."""
    scores, wanted = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(scores, wanted, reduction="sum") / num_items_in_batch


def accuracy(predicted):
    scores, labels = torch.from_numpy(predicted.predictions), torch.from_numpy(predicted.label_ids)
    return {"accuracy": float((scores.argmax(-1)[:, :-1] == labels[:, 1:])[labels[:, 1:] != -100].double().mean())}


def nothing(predicted):
    """A metric that an evaluation cannot compute."""
    return {"nothing": float("nan")}


class Record(transformers.TrainerCallback):
    """Notes the steps that this process sees, and ends the process where a test wants it."""

    steps = []

    def on_step_end(self, args, state, control, **_):
        self.steps.append(state.global_step)

    def on_prediction_step(self, args, state, control, **_):
        if not IS_PLAIN and trainer.job and os.environ.get("KILL_IN_EVALUATION") == f"{trainer.job.rank}:{state.global_step}":
            os.kill(os.getpid(), 9)


arguments = {
    "per_device_train_batch_size": BATCH if IS_PLAIN else 1 if "ones" in USES else 2,
    "max_steps": int(os.environ.get("STEPS", "14")),
    # In thousands of steps a higher rate would let rounding differences grow.
    "learning_rate": 0.0 if "still" in USES else float(os.environ.get("RATE", "0.02")),
    "optim": "adamw_torch" if "adamw" in USES else "sgd",
    "max_grad_norm": 0.3 if "clip" in USES else 0,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 3,
    "train_sampling_strategy": "sequential",
    "logging_steps": 1,
    "save_strategy": "no",
    "seed": 5,
    "use_cpu": True,
    "disable_tqdm": True,
    "per_device_eval_batch_size": 3,
}
callbacks = [Record()]
if "evaluate" in USES or "accuracy" in USES:
    arguments |= {"eval_strategy": "steps", "eval_steps": 4}
if "stop" in USES:
    # No evaluation after the first one is better by so much: training stops after step 9.
    callbacks.append(transformers.EarlyStoppingCallback(2, 10.0))
    arguments |= {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    # "worst": the best model is the first one.
    arguments |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": "worst" in USES}
if "nan" in USES:
    arguments |= {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    arguments |= {"metric_for_best_model": "nothing"}
if "random" in USES:
    arguments |= {"max_steps": -1, "num_train_epochs": 1}
    if IS_PLAIN:
        import roundhouse

        step = roundhouse.Sampler(NUM_SAMPLES, NUM_SAMPLES, epochs=1, seed=5).plan(0, 0, (0, 0, 1))
        samples = [samples[index] for index in step.indices]
    else:
        arguments |= {"train_sampling_strategy": "random", "dataloader_num_workers": 1}
if "recompute" in USES:
    arguments |= {"gradient_checkpointing": True}
if "smooth" in USES:
    arguments |= {"label_smoothing_factor": 0.1}

options = {
    "model": model,
    "args": transformers.TrainingArguments(str(OUT), **arguments),
    "train_dataset": samples,
    "eval_dataset": evaluated,
    "callbacks": callbacks,
    "compute_loss_func": None if {"own", "smooth", "repeated", "unlabelled"} & set(USES) else token_loss,
    "compute_metrics": accuracy if "accuracy" in USES else nothing if "nan" in USES else None,
}


def saved():
    """The weights in the file that the Trainer has written."""
    if isinstance(model, NextWord):
        return load_file(OUT / "model" / "model.safetensors")
    return transformers.GPT2LMHeadModel.from_pretrained(OUT / "model", dtype=torch.float64).state_dict()


trainer = transformers.Trainer(**options) if IS_PLAIN else roundhouse.hf.Trainer(**options, global_batch_size=BATCH)
if "before" in USES:
    trainer.evaluate()
result = trainer.train()
if "result" in USES:
    # Beside the checkpoints of the job. Rank 0 alone writes it.
    trainer.save_model(os.path.join(os.environ["ROUNDHOUSE_CHECKPOINT_DIR"], "model"))
else:
    rank = 0 if IS_PLAIN else trainer.job.rank
    OUT.mkdir(exist_ok=True)
    if IS_SHARDED:
        trainer.save_model(OUT / "model")
    if trainer.is_world_process_zero():
        torch.save(saved() if IS_SHARDED else model.state_dict(), OUT / "weights.pt")
    found = {"steps": Record.steps, "log": trainer.state.log_history, "last": result.global_step}
    (OUT / f"rank-{rank}.json").write_text(json.dumps(found))
