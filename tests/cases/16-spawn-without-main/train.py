import torch
import roundhouse as rh


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.rand(8), torch.rand(1)


model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    # The spawned process imports this file, and so reaches rh.join again.
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    for batch in job.steps(Rows(), job.sampler(64, 16, epochs=1), **options):
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        job.commit(loss, opt)
