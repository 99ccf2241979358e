"""One rank of the training with the strategy of roundhouse for Lightning. Arguments: the model, and
the port of the benchmark."""
import os
import sys

import roundhouse.lightning
import torch
from lit import Lit, Paced, trainer
from models import prepared
from torch.utils.data import DataLoader

NAME, PORT = sys.argv[1], int(sys.argv[2])

model, dataset, batch = prepared(NAME)
strategy = roundhouse.lightning.Elastic(global_batch_size=batch)
loader = DataLoader(dataset, batch_size=batch // int(os.environ["BENCH_WORLD"]))
callback = Paced(PORT, lambda: strategy.job.rank)
torch.set_num_threads(1)
trainer(callback, strategy=strategy).fit(Lit(model), loader)
