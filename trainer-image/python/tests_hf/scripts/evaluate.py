"""Evaluates a tiny model after each of three steps that change nothing, and reports checksums of
what its metrics are computed from. Arguments: the directory of its output, and the names of
features. With ``plain`` it uses the Trainer of transformers, in one process."""

import itertools
import json
import os
import pathlib
import sys
import zlib

import torch
import transformers
from transformers.trainer_pt_utils import nested_numpify

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    import roundhouse.hf
    from roundhouse.integration import rows
IS_SHARDED = "sharded" in USES
if IS_SHARDED:
    mesh = roundhouse.replica_mesh()

BATCH, NUM_SAMPLES, NUM_WORDS = 4, 22, 9
torch.manual_seed(5)
words = torch.randint(4, 17, (NUM_SAMPLES, NUM_WORDS))
lengths = torch.randint(3, NUM_WORDS + 1, (NUM_SAMPLES,)).tolist()
samples = [{"input_ids": words[index, : lengths[index]]} for index in range(NUM_SAMPLES)]


def padded(rows):
    """A batch as wide as its longest sentence."""
    inputs = [row["input_ids"] for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    batch = {"input_ids": pad(inputs, batch_first=True, padding_value=1), "labels": pad(inputs, batch_first=True, padding_value=-100)}
    return {**batch, "attention_mask": (batch["labels"] != -100).long()}


class NextWord(torch.nn.Module):
    """A model whose logits are of several kinds."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(17, 8), torch.nn.Linear(8, 17)

    def forward(self, input_ids, labels, **_):
        states = self.embedding(input_ids)
        scores = self.head(states)
        loss = torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        found = {"loss": loss, "logits": scores}
        if "nested" in USES:
            found["more"] = (labels.int().sum(1), {"mean": states.mean(1).bfloat16()}, [scores > 0])
        return found


def checksum(values):
    """A number of all arrays in nested lists, tuples and dicts."""
    if isinstance(values, dict):
        return checksum([part for name in sorted(values) for part in (torch.tensor(len(name)).numpy(), values[name])])
    if isinstance(values, (list, tuple)):
        return float(sum((index + 1) * checksum(value) for index, value in enumerate(values)))
    kind = f"{values.dtype} {values.shape}".encode()
    return float(zlib.crc32(kind + values.tobytes()))


def metrics(predicted):
    if "inner" in USES and Record.num_inner == 0:
        # Metrics that need predictions of their own.
        Record.num_inner = 1
        inner = trainer.predict(samples[:5])
        Record.num_inner = 0
        return {"checksum": checksum([inner.predictions, predicted.predictions]), "width": predicted.label_ids.shape[1]}
    values = [predicted.predictions, predicted.label_ids, predicted.losses]
    return {"checksum": checksum(values), "width": predicted.label_ids.shape[1]}


batch_sums = []


def metrics_of_batches(predicted, compute_result):
    batch_sums.append(checksum(nested_numpify([predicted.predictions, predicted.label_ids, predicted.losses])))
    if not compute_result:
        return {}
    found = {"checksum": checksum([torch.tensor(batch_sums).numpy()]), "width": len(batch_sums)}
    batch_sums.clear()
    return found


Base = transformers.Seq2SeqTrainer if "generate" in USES else transformers.Trainer


class Counting(Base):
    num_passes = 0

    def prediction_step(self, *args, **kwargs):
        self.num_passes += 1
        return super().prediction_step(*args, **kwargs)


class Averaged(torch.optim.SGD):
    """An optimizer that has other weights in evaluations."""

    shift = 0.0

    def move(self, shift):
        for parameter in self.param_groups[0]["params"]:
            parameter.data += shift - self.shift
        self.shift = shift

    def eval(self):
        self.move(0.125)

    def train(self):
        self.move(0.0)


class OwnLoop(Counting):
    def evaluation_loop(self, *args, **kwargs):
        return super().evaluation_loop(*args, **kwargs)


Kind = OwnLoop if "loop" in USES else Counting
Trainer = Kind if IS_PLAIN else type("Trainer", (roundhouse.hf.Elastic, Kind), {})


class Record(transformers.TrainerCallback):
    """Notes the steps and evaluations that this process sees, and ends it where a test wants it."""

    steps, found, num_noted, num_inner = [], [], 0, 0

    def on_step_end(self, args, state, control, **_):
        self.steps.append(state.global_step)
        if "predict" in USES and state.global_step == 2:
            output = trainer.predict(samples[:7])
            self.found.append(("predict", checksum([output.predictions, output.label_ids]), output.metrics["test_checksum"]))

    def on_prediction_step(self, args, state, control, eval_dataloader, **_):
        assert len(eval_dataloader.dataset[0]["input_ids"]) == lengths[0]
        self.num_noted += 1
        if os.environ.get("KILL_IN_EVALUATION") == f"{rank()}:{state.global_step}":
            os.kill(os.getpid(), 9)

    def on_evaluate(self, args, state, control, **_):
        self.found.append((state.global_step, trainer.num_passes, self.num_noted))
        trainer.num_passes = self.num_noted = 0


def rank():
    return 0 if IS_PLAIN or trainer.job is None else trainer.job.rank


if not IS_PLAIN:
    rows.CHUNK_BYTES = 600
    if "large" in USES:
        rows.MOST_BYTES = 3000
    if "KILL_IN_CHUNK" in os.environ:
        numbers, chunks = rows.numbers_of, []

        def kill(row):
            chunks.append(row)
            if f"{rank()}:{len(chunks)}" == os.environ["KILL_IN_CHUNK"]:
                os.kill(os.getpid(), 9)
            return numbers(row)

        rows.numbers_of = kill

torch.manual_seed(6)
if "generate" in USES:
    sizes = {f"{part}_{name}": 1 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "d_model": 8, "vocab_size": 17, "max_position_embeddings": 16}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, forced_eos_token_id=None))
else:
    model = NextWord()
if IS_SHARDED:
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)

options = {
    "max_steps": 3,
    "learning_rate": 0.0,
    "per_device_train_batch_size": BATCH,
    "per_device_eval_batch_size": 3,
    "train_sampling_strategy": "sequential",
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "no",
    "logging_strategy": "no",
    "include_for_metrics": ["loss", *(["inputs"] if "inputs" in USES else [])],
    "batch_eval_metrics": "batches" in USES,
    "use_cpu": True,
    "disable_tqdm": True,
    "remove_unused_columns": False,
}
kind = transformers.TrainingArguments
if "generate" in USES:
    kind, options = transformers.Seq2SeqTrainingArguments, {**options, "predict_with_generate": True, "generation_max_length": 7}
class LateLoader(torch.utils.data.DataLoader):
    """A loader that skips its first batch."""

    def __iter__(self):
        return itertools.islice(super().__iter__(), 1, None)


evaluated = samples[: 0 if "no-batch" in USES else 3 if "one-batch" in USES else 20]
if "part" in USES:
    # A loader of the script that reads the first samples.
    Trainer.get_eval_dataloader = lambda self, _=None: torch.utils.data.DataLoader(
        evaluated, 3, sampler=torch.utils.data.SequentialSampler(range(14)), collate_fn=padded
    )
if "late" in USES:
    Trainer.get_eval_dataloader = lambda self, _=None: LateLoader(evaluated, 3, collate_fn=padded)
# Without metrics an evaluation computes only the loss.
compute_metrics = None if "loss" in USES else metrics_of_batches if "batches" in USES else metrics
trainer = Trainer(
    model=model,
    args=kind(str(OUT), **options),
    train_dataset=samples,
    eval_dataset=evaluated,
    optimizers=(Averaged(model.parameters(), lr=0.0) if "averaged" in USES else None, None),
    data_collator=padded,
    compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=(lambda logits, labels: logits.argmax(-1)) if "preprocess" in USES else None,
    callbacks=[Record()],
    **({} if IS_PLAIN else {"global_batch_size": BATCH}),
)
result = trainer.train()
OUT.mkdir(exist_ok=True)
if IS_PLAIN or trainer.job.rank == 0:
    torch.save({}, OUT / "weights.pt")
found = {"steps": Record.steps, "log": trainer.state.log_history, "found": Record.found}
(OUT / f"rank-{rank()}.json").write_text(json.dumps(found))
