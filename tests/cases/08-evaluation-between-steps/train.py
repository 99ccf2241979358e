import time

import torch
import roundhouse as rh

model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.rand(64, 8), torch.rand(64, 1))
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    for batch in job.steps(rows, job.sampler(64, 16, epochs=2)):
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        if job.commit(loss, opt) and job.steps_done == 4:
            # A step takes milliseconds, and this evaluation takes longer than 40 s.
            time.sleep(45)
print("made", job.steps_done, "steps")
