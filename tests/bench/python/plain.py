"""One rank of the training with PyTorch alone: DistributedDataParallel over Gloo, or the bare model
in a process without a launcher. Arguments: the model, and the port of the benchmark."""
import os
import sys

import torch
import torch.distributed as dist
from models import loss_of, optimizer_of, prepared
from pace import Pace
from share import Share
from torch.nn.parallel import DistributedDataParallel

NAME, PORT = sys.argv[1], int(sys.argv[2])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
IS_BARE = "RANK" not in os.environ

torch.set_num_threads(1)
model, dataset, batch = prepared(NAME)
optimizer = optimizer_of(model)
net = model
if not IS_BARE:
    dist.init_process_group("gloo")
    net = DistributedDataParallel(model)
pace = None
for x, y in torch.utils.data.DataLoader(dataset, batch_sampler=Share(batch, RANK, WORLD)):
    loss = loss_of(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    pace = pace or Pace(PORT, RANK)
    if not pace.continues(loss):
        break
if not IS_BARE:
    dist.destroy_process_group()
