import torch
import roundhouse as rh

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.rand(64, 8), torch.rand(64, 1))
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model, find_unused_parameters=True)
    for batch in job.steps(rows, job.sampler(64, 16, epochs=1)):
        if job.steps_done == 2:
            # The new module is in no optimizer and in no checkpoint.
            model[1] = torch.nn.Linear(8, 1)
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        job.commit(loss, opt)
