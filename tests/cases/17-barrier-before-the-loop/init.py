import torch
import torch.distributed as dist
import roundhouse as rh

dist.init_process_group("gloo")
rh.join(state={"model": torch.nn.Linear(8, 1)})
