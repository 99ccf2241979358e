"""Trains a tiny GPT-2 in 64 bits with a loop of its own over accelerate. Arguments: the directory
of its output, and the names of features. With ``plain`` it uses the Accelerator of accelerate, in
one process, which makes the same steps."""

import json
import math
import os
import pathlib
import sys

import accelerate
import torch
import transformers

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    from roundhouse.hf import Accelerator

# The sentences have padding, which no loss counts, so ranks have different numbers of tokens.
NUM_SAMPLES, NUM_WORDS, NUM_EPOCHS = 32, 11, 3
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
words = torch.randint(17, (NUM_SAMPLES, NUM_WORDS))
lengths = torch.randint(3, NUM_WORDS + 1, (NUM_SAMPLES,)).tolist()


def sample(index):
    labels = words[index].clone()
    labels[lengths[index] :] = -100
    return {"input_ids": words[index], "attention_mask": (labels != -100).long(), "labels": labels}


class Causal(transformers.GPT2LMHeadModel):
    """GPT-2 with its loss in 64 bits: its own one computes in 32 bits."""

    def forward(self, input_ids, attention_mask, labels=None):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        output.loss = mean_loss(output.logits, labels)
        return output


def mean_loss(scores, labels):
    return torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def total_of(module):
    return sum(float(weight.detach().abs().sum()) for weight in module.parameters())


samples = [sample(index) for index in range(NUM_SAMPLES)]
config = transformers.GPT2Config(
    n_layer=1, n_head=2, n_embd=8, vocab_size=17, n_positions=NUM_WORDS, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
)
model = Causal(config)
optimizer = (torch.optim.AdamW if "adamw" in USES else torch.optim.SGD)(model.parameters(), lr=0.02)

# In one process a single pass has the whole batch, because a mean of means would differ.
average = torch.optim.swa_utils.AveragedModel(model)
if IS_PLAIN:
    accelerator = accelerate.Accelerator(cpu=True)
    epochs_done = steps_done = 0
else:
    counted = {"state": {"average": average}} if "average" in USES else {}
    counted |= {"num_items": lambda batch: (batch["labels"][:, 1:] != -100).sum()} if "own" in USES else {}
    accelerator = Accelerator(epochs=NUM_EPOCHS, gradient_accumulation_steps=3, cpu=True, **counted)
batch_size = 6 if IS_PLAIN else 2
train_loader = torch.utils.data.DataLoader(samples, batch_size=batch_size)
eval_loader = torch.utils.data.DataLoader(samples[:20], batch_size=3)
steps_per_epoch = math.ceil(len(train_loader) / accelerator.gradient_accumulation_steps)
schedule = transformers.get_scheduler("cosine", optimizer, num_warmup_steps=3, num_training_steps=NUM_EPOCHS * steps_per_epoch)
model, optimizer, train_loader, eval_loader, schedule = accelerator.prepare(model, optimizer, train_loader, eval_loader, schedule)
assert steps_per_epoch == math.ceil(len(train_loader) / accelerator.gradient_accumulation_steps) == 6
if not IS_PLAIN:
    epochs_done, steps_done = accelerator.epochs_done, accelerator.steps_done

completed, log, steps = steps_done, [], []


def note(name, value):
    log.append({"step": completed, name: value})


def evaluate():
    model.eval()
    losses, correct = [], []
    for index, batch in enumerate(eval_loader):
        if index == 2 and os.environ.get("KILL_IN_EVALUATION") == f"{accelerator.process_index}:{completed}":
            os.kill(os.getpid(), 9)
        with torch.no_grad():
            output = model(**batch)
        losses.append(accelerator.gather_for_metrics(output.loss.repeat(3)))
        found, wanted = accelerator.gather_for_metrics((output.logits.argmax(-1)[:, :-1], batch["labels"][:, 1:]))
        correct.append((found == wanted)[wanted != -100])
    assert sum(map(len, losses)) == 20
    note("eval_loss", float(torch.cat(losses).mean()))
    note("accuracy", float(torch.cat(correct).double().mean()))
    model.train()


for epoch in range(epochs_done, NUM_EPOCHS):
    model.train()
    for batch in train_loader:
        with accelerator.accumulate(model):
            if "own" in USES:
                loss = mean_loss(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]).logits, batch["labels"])
            else:
                loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients and "clip" in USES:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.3)
            rate = schedule.get_last_lr()[0]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            steps.append(completed)
            if "average" in USES:
                average.update_parameters(accelerator.unwrap_model(model))
            note("learning_rate", rate)
            if IS_PLAIN or accelerator.steps_done == completed:
                note("loss", loss.item() if IS_PLAIN else accelerator.job.loss)
            if "clip" in USES:
                note("grad_norm", norm.item())
            if "evaluate" in USES and completed % 4 == 0:
                evaluate()
    if "epochs" in USES:
        evaluate()
        accelerator.wait_for_everyone()
    if "first" in USES and epoch == 1:
        break

accelerator.wait_for_everyone()
rank = accelerator.process_index
OUT.mkdir(exist_ok=True)
accelerator.save(accelerator.unwrap_model(model).state_dict(), OUT / "weights.pt")
(OUT / f"rank-{rank}.json").write_text(json.dumps({"steps": steps, "log": log, "last": completed, "average": total_of(average)}))
accelerator.end_training()
