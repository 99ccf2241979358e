import os
import pwd

import torch
import roundhouse as rh

try:
    pwd.getpwuid(os.getuid())
    raise SystemExit(f"user {os.getuid()} has a name")
except KeyError:
    pass
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.rand(64, 8), torch.rand(64, 1))
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    for batch in job.steps(rows, job.sampler(64, 16, epochs=1)):
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        job.commit(loss, opt)
print("made", job.steps_done, "steps as", os.environ["USER"])
