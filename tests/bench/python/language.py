"""The model, the samples and the arguments of both sides that train with a Trainer of
transformers."""
import torch
from models import NUM_SAMPLES, SEED
from pace import Pace
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

BATCH, CONTEXT, VOCABULARY = 8, 128, 512


def gpt2():
    """A GPT-2 of 4 layers of 256, and sequences of random tokens."""
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_layer=4, n_head=4, n_embd=256, bos_token_id=0, eos_token_id=0,
        # The random numbers of dropout depend on the process.
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(VOCABULARY, (NUM_SAMPLES, CONTEXT))
    return model, [{"input_ids": row, "labels": row} for row in tokens]


def arguments(directory, world):
    """Arguments in which both sides make one pass for a step, without files and logs."""
    return TrainingArguments(
        directory, per_device_train_batch_size=BATCH // world, max_steps=10_000_000, learning_rate=1e-4,
        lr_scheduler_type="constant", train_sampling_strategy="sequential", save_strategy="no", logging_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True, seed=SEED,
    )


class Paced(TrainerCallback):
    """Lets the benchmark control the training. Use ``mean_of`` in ``compute_loss``."""

    def __init__(self, port, rank_of):
        self.port, self.rank_of = port, rank_of
        self.pace, self.loss = None, None

    def mean_of(self, loss, labels, num_items, num_processes):
        """Notes the mean loss over this rank's labels. The Trainers divide by other numbers."""
        self.loss = loss.detach() * (num_items / labels[..., 1:].numel() / num_processes)

    def on_step_end(self, args, state, control, **_):
        self.pace = self.pace or Pace(self.port, self.rank_of())
        control.should_training_stop = not self.pace.continues(self.loss)


def paced(kind):
    """A subclass of a Trainer that notes its losses for a callback ``paced``."""

    class Noting(kind):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            self.paced.mean_of(loss, inputs["labels"], num_items_in_batch, self.accelerator.num_processes)
            return loss

    return Noting
