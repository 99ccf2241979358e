"""One rank of the training with the Trainer of roundhouse. Arguments: the model, and the port of
the benchmark."""
import os
import sys
import tempfile

import roundhouse.hf
import torch
from language import BATCH, Paced, arguments, gpt2, paced

PORT = int(sys.argv[2])

model, dataset = gpt2()
with tempfile.TemporaryDirectory() as directory:
    options = arguments(directory, int(os.environ["BENCH_WORLD"]))
    callback = Paced(PORT, lambda: trainer.job.rank)
    trainer = paced(roundhouse.hf.Trainer)(
        model, options, train_dataset=dataset, callbacks=[callback], global_batch_size=BATCH
    )
    trainer.paced = callback
    torch.set_num_threads(1)
    trainer.train()
