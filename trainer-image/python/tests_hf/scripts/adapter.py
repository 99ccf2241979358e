"""Trains an adapter (LoRA) of a tiny GPT-2 in 64 bits, with the Trainer of transformers or with
TRL's SFTTrainer (``sft``). Arguments: the directory of its output, and the names of features. With
``plain`` it uses the class of the library itself, in one process."""

import json
import pathlib
import sys

import datasets
import peft
import torch
import transformers

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    from roundhouse.hf import Elastic, Trainer
if "sharded" in USES:
    import roundhouse

    mesh = roundhouse.replica_mesh()
if "sft" in USES:
    import trl

BATCH, NUM_SAMPLES, NUM_WORDS = 6, 32, 11
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
words = torch.randint(2, 17, (NUM_SAMPLES, NUM_WORDS))
lengths = torch.randint(3, NUM_WORDS + 1, (NUM_SAMPLES,)).tolist()
rows = [row[:length].tolist() for row, length in zip(words, lengths)]
dataset = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})
config = transformers.GPT2Config(
    n_layer=1, n_head=2, n_embd=8, vocab_size=17, n_positions=NUM_WORDS, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
)
model = transformers.GPT2LMHeadModel(config)
base = {name: weight.clone() for name, weight in model.state_dict().items()}
lora = peft.LoraConfig(
    r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM",
    modules_to_save=["lm_head"] if "head" in USES else None,
)


def token_loss(outputs, labels, num_items_in_batch=None):
    """The loss of the model in 64 bits: its own one, and that of SFTTrainer, compute in 32 bits."""
    scores, wanted = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = torch.nn.functional.cross_entropy(scores, wanted, reduction="sum")
    return total / ((wanted != -100).sum() if num_items_in_batch is None else num_items_in_batch)


def collate(samples):
    ids = [torch.tensor(sample["input_ids"]) for sample in samples]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)
    return {"input_ids": padded, "attention_mask": (labels != -100).long(), "labels": labels}


arguments = {
    "per_device_train_batch_size": BATCH if IS_PLAIN else 2,
    "max_steps": 10,
    "learning_rate": 0.02,
    "optim": "adamw_torch" if "adamw" in USES else "sgd",
    "max_grad_norm": 0,
    "train_sampling_strategy": "sequential",
    "logging_steps": 1,
    "save_strategy": "no",
    "seed": 5,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
if "evaluate" in USES:
    arguments |= {"eval_strategy": "steps", "eval_steps": 5, "per_device_eval_batch_size": 4}
if "best" in USES:
    # No evaluation has a higher loss than the first one.
    arguments |= {"eval_strategy": "steps", "eval_steps": 5, "per_device_eval_batch_size": 4, "save_strategy": "steps", "save_steps": 5}
    arguments |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
options = {"train_dataset": dataset, "eval_dataset": dataset, "data_collator": collate}
if "sft" not in USES or "exact" in USES:
    options |= {"compute_loss_func": token_loss}
elastic = {} if IS_PLAIN else {"global_batch_size": BATCH}
if "sft" in USES:
    import tokenizers

    vocabulary = tokenizers.models.WordLevel({str(word): word for word in range(17)}, unk_token="0")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(vocabulary), pad_token="0", eos_token="1")
    kind = trl.SFTTrainer
    if not IS_PLAIN:

        class ElasticSFT(Elastic, trl.SFTTrainer):
            pass

        kind = ElasticSFT
    args = trl.SFTConfig(str(OUT), bf16=False, dataset_kwargs={"skip_prepare_dataset": True}, **arguments)
    trainer = kind(model=model, args=args, processing_class=tokenizer, peft_config=lora, **options, **elastic)
else:
    args = transformers.TrainingArguments(str(OUT), **arguments)
    kind = transformers.Trainer if IS_PLAIN else Trainer
    model = peft.get_peft_model(model, lora)
    if "sharded" in USES:
        for block in model.base_model.model.transformer.h:
            torch.distributed.fsdp.fully_shard(block, mesh=mesh)
        torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    trainer = kind(model=model, args=args, **options, **elastic)

result = trainer.train()
rank = 0 if IS_PLAIN else trainer.job.rank
OUT.mkdir(exist_ok=True)


def whole(weight):
    """The whole tensor, of which a process of a replica has a part."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


trained = {name: whole(weight.detach()) for name, weight in trainer.model.named_parameters() if weight.requires_grad}
kept = {name for name in trained if "modules_to_save" in name}
assert all("lora_" in name for name in trained.keys() - kept) and len(trained) == (3 if "head" in USES else 2)
# The adapter alone has moved.
now = {
    name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".original_module", ""): whole(weight)
    for name, weight in trainer.model.state_dict().items()
}
assert all(torch.equal(weight, now[name]) for name, weight in base.items())
# It writes on rank 0 alone.
trainer.save_model(str(OUT / "adapter"))
if trainer.is_world_process_zero():
    torch.save(trained, OUT / "weights.pt")
    torch.save(base, OUT / "base.pt")
(OUT / f"rank-{rank}.json").write_text(json.dumps({"log": trainer.state.log_history, "last": result.global_step}))
