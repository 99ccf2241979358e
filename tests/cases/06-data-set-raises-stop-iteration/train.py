import torch
import roundhouse as rh


class Rows:
    """Has 40 rows, fewer than its length."""

    def __init__(self):
        self.rows = iter([(torch.rand(8), torch.rand(1)) for _ in range(40)])

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return next(self.rows)


model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    for batch in job.steps(Rows(), job.sampler(64, 16, epochs=1)):
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        job.commit(loss, opt)
