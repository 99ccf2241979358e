"""One rank of the training with Lightning, alone or with DDP over Gloo. Arguments: the model, and
the port of the benchmark."""
import os
import sys

import torch
from lit import Lit, Paced, trainer
from models import NUM_SAMPLES, prepared
from torch.utils.data import DataLoader

NAME, PORT = sys.argv[1], int(sys.argv[2])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Share:
    """The batches of this rank in the order of the data set."""

    def __iter__(self):
        part = batch // WORLD
        for start in range(part * RANK, NUM_SAMPLES, batch):
            yield list(range(start, start + part))

    def __len__(self):
        return NUM_SAMPLES // batch


torch.set_num_threads(1)
model, dataset, batch = prepared(NAME)
options = {}
if WORLD > 1:
    os.environ["NODE_RANK"] = "0"
    options = {"strategy": "ddp", "devices": WORLD, "use_distributed_sampler": False}
trainer(Paced(PORT, lambda: RANK), **options).fit(Lit(model), DataLoader(dataset, batch_sampler=Share()))
