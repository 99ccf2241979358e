"""Trains a small GPT-2 on Romeo and Juliet with the Trainer of transformers, elastic: the processes
of a worker share one copy of the model by FSDP2, and workers may die, leave and join."""
import os
import pathlib

import roundhouse as rh
from roundhouse.hf import Trainer
from torch.distributed.fsdp import fully_shard
from transformers import DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainingArguments, set_seed

DATA = pathlib.Path(os.environ.get("DATA") or pathlib.Path(__file__).parent.parent / "data" / "romeo")
OUT = os.environ.get("OUT", "romeo")
CONTEXT = 64


def main():
    set_seed(1)
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizer.json"), eos_token=end, pad_token=end)

    def speeches(name):
        lines = (DATA / name).read_text().splitlines()
        return [{"input_ids": tokenizer(line + end)["input_ids"][:CONTEXT]} for line in lines]

    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=CONTEXT, n_layer=2, n_head=4, n_embd=64))
    mesh = rh.replica_mesh()
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            OUT,
            per_device_train_batch_size=16,
            num_train_epochs=float(os.environ.get("EPOCHS", "10")),
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            logging_steps=24,
            eval_strategy="epoch",
            save_strategy="no",
        ),
        train_dataset=speeches("train.txt"),
        eval_dataset=speeches("val.txt"),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        global_batch_size=32,
    )
    trainer.train()
    # All processes call these: each has a part of the weights.
    trainer.save_model()
    print(f"loss on the last speeches: {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
