"""One rank of the training with PyTorch alone: DistributedDataParallel over Gloo, or the bare model
in a process without a launcher. Arguments: the model, and the port of the benchmark."""
import os
import sys

import torch
import torch.distributed as dist
from loops import train_plain
from models import prepared
from torch.nn.parallel import DistributedDataParallel

NAME, PORT = sys.argv[1], int(sys.argv[2])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

torch.set_num_threads(1)
net, dataset, batch = prepared(NAME)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    net = DistributedDataParallel(net)
train_plain(net, dataset, batch, PORT, RANK, WORLD)
if dist.is_initialized():
    dist.destroy_process_group()
