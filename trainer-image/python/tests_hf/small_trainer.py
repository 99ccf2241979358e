"""A Trainer of a tiny model, in this process."""

import torch
import transformers

NUM_SAMPLES = 10


class Tiny(torch.nn.Module):
    """A model with a loss, such as those of transformers. ``divides``: the loss is a sum that is
    divided by the number of items, or a mean that ignores the number."""

    def __init__(self, divides=False, router=0.0):
        super().__init__()
        torch.manual_seed(2)
        self.layer = torch.nn.Linear(4, 3, dtype=torch.float64)
        self.divides, self.router = divides, router

    def forward(self, x, labels=None, num_items_in_batch=None, **_):
        scores = self.layer(x.to(self.layer.weight.dtype))
        self.computed_in = scores.dtype
        if self.divides and num_items_in_batch is not None:
            loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum") / num_items_in_batch
        else:
            loss = torch.nn.functional.cross_entropy(scores, labels)
        return {"loss": loss + self.router * self.layer.weight.square().mean(), "logits": scores}


def samples():
    torch.manual_seed(3)
    points = torch.randn(NUM_SAMPLES, 4, dtype=torch.float64)
    return [{"x": point, "labels": torch.tensor(index % 3)} for index, point in enumerate(points)]


def arguments(directory, **options):
    """Arguments of a training of three steps without logs and files."""
    options = {"max_steps": 3, "learning_rate": 0.1, "optim": "sgd", "train_sampling_strategy": "sequential", **options}
    options = {"save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "disable_tqdm": True, **options}
    return transformers.TrainingArguments(str(directory), **options)
