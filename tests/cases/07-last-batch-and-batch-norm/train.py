import os

import torch
import roundhouse as rh

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.rand(65, 8), torch.rand(65, 1))
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    # 65 rows are four batches of 16 and a last batch of one row.
    sampler = job.sampler(len(rows), 16, epochs=1, drop_last=os.environ["DROP_LAST"] == "yes")
    for batch in job.steps(rows, sampler):
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        job.commit(loss, opt)
print("made", job.steps_done, "steps")
