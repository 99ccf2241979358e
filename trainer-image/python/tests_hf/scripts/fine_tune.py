"""Fine-tunes a tiny GPT-2 in 64 bits on sentences of different lengths. Arguments: the directory of
its output, and the names of features. Without roundhouse it is a plain script."""

import json
import os
import pathlib
import sys

import torch

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if IS_PLAIN:
    import transformers

    Trainer, options = transformers.Trainer, {}
else:
    import transformers
    from roundhouse.hf import Trainer

    options = {"global_batch_size": 6}

# The sentences have padding, which no loss counts, so ranks have different numbers of tokens.
STEPS, NUM_SAMPLES, NUM_WORDS = 14, 32, 11
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
words = torch.randint(17, (NUM_SAMPLES, NUM_WORDS))
lengths = torch.randint(3, NUM_WORDS + 1, (NUM_SAMPLES,)).tolist()


def sample(index):
    labels = words[index].clone()
    labels[lengths[index] :] = -100
    return {"input_ids": words[index], "attention_mask": (labels != -100).long(), "labels": labels}


samples = [sample(index) for index in range(NUM_SAMPLES)]
config = transformers.GPT2Config(
    n_layer=1, n_head=2, n_embd=8, vocab_size=17, n_positions=NUM_WORDS, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
)
model = transformers.GPT2LMHeadModel(config)


def token_loss(outputs, labels, num_items_in_batch=None):
    """The loss of the model in 64 bits: its own one computes in 32 bits."""
    scores, wanted = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(scores, wanted, reduction="sum") / num_items_in_batch


class Record(transformers.TrainerCallback):
    """Notes the steps that this process sees, and ends the process where a test wants it."""

    steps = []

    def on_step_end(self, args, state, control, **_):
        self.steps.append(state.global_step)

    def on_prediction_step(self, args, state, control, **_):
        rank, _, step = os.environ.get("KILL_IN_EVALUATION", "").partition(":")
        if step and trainer.job.rank == int(rank) and state.global_step == int(step):
            os.kill(os.getpid(), 9)


arguments = {
    "per_device_train_batch_size": 6 if IS_PLAIN else 2,
    "max_steps": STEPS,
    "learning_rate": 0.02,
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
}
if "evaluate" in USES:
    arguments |= {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 3}
trainer = Trainer(
    model=model,
    args=transformers.TrainingArguments(str(OUT), **arguments),
    train_dataset=samples,
    eval_dataset=samples[:20],
    callbacks=[Record()],
    compute_loss_func=None if "own" in USES else token_loss,
    **options,
)
result = trainer.train()
rank = 0 if IS_PLAIN else trainer.job.rank
OUT.mkdir(exist_ok=True)
if rank == 0:
    torch.save(model.state_dict(), OUT / "weights.pt")
found = {"steps": Record.steps, "log": trainer.state.log_history, "global_step": result.global_step, "loss": result.training_loss}
(OUT / f"rank-{rank}.json").write_text(json.dumps(found))
