import torch
import roundhouse as rh

model = torch.nn.Linear(8, 1)
with rh.join(state={"model": model}) as job:
    if job.rank == 0:
        print("each process downloads the data")
