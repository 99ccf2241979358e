"""Trains a small GPT-2 on Romeo and Juliet with the Trainer of transformers, unchanged. A restart
continues from the checkpoint that the Trainer writes when it gets SIGTERM."""
import os
import pathlib

from transformers import DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

DATA = pathlib.Path(os.environ.get("DATA") or pathlib.Path(__file__).parent.parent / "data" / "romeo")
OUT = pathlib.Path(os.environ.get("OUT", "romeo"))
CONTEXT = 64


def last_checkpoint():
    """The newest complete checkpoint, if there is one.

    SIGTERM may reach the ranks in different steps. Only the checkpoint of rank 0 has the weights,
    and the state of the Trainer, which it writes last.
    """
    steps = {int(path.name.split("-")[1]): path for path in OUT.glob("checkpoint-*") if (path / "trainer_state.json").exists()}
    complete = (path for _, path in sorted(steps.items(), reverse=True) if not (path / "checkpoint-is-incomplete.txt").exists())
    return next(complete, None)


def main():
    set_seed(1)
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizer.json"), eos_token=end, pad_token=end)

    def speeches(name):
        lines = (DATA / name).read_text().splitlines()
        return [{"input_ids": tokenizer(line + end)["input_ids"][:CONTEXT]} for line in lines]

    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=CONTEXT, n_layer=2, n_head=4, n_embd=64)),
        args=TrainingArguments(
            OUT,
            # The global batch has 32 samples with any number of processes that divides it.
            per_device_train_batch_size=32 // int(os.environ.get("WORLD_SIZE", "1")),
            num_train_epochs=float(os.environ.get("EPOCHS", "10")),
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            logging_steps=24,
            save_strategy="epoch",
            save_total_limit=2,
            enable_jit_checkpoint=True,
            use_cpu=True,
        ),
        train_dataset=speeches("train.txt"),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    checkpoint = last_checkpoint()
    print(f"continues from {checkpoint}" if checkpoint else "begins", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    # After SIGTERM the Trainer has stopped early.
    if trainer.state.global_step == trainer.state.max_steps:
        trainer.save_model()


if __name__ == "__main__":
    main()
