"""One rank of the training with the Trainer of transformers, alone or with DDP over Gloo.
Arguments: the model, and the port of the benchmark."""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import transformers
from language import Paced, arguments, gpt2, paced

PORT = int(sys.argv[2])

torch.set_num_threads(1)
model, dataset = gpt2()
with tempfile.TemporaryDirectory() as directory:
    options = arguments(directory, int(os.environ.get("WORLD_SIZE", "1")))
    callback = Paced(PORT, lambda: int(os.environ.get("RANK", "0")))
    trainer = paced(transformers.Trainer)(model, options, train_dataset=dataset, callbacks=[callback])
    trainer.paced = callback
    trainer.train()
if dist.is_initialized():
    dist.destroy_process_group()
