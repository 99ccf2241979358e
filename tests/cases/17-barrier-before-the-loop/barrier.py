import torch
import torch.distributed as dist
import roundhouse as rh

model = torch.nn.Linear(8, 1)
with rh.join(state={"model": model}) as job:
    dist.barrier()
