"""Trains a compiled model and prints how often PyTorch has compiled it. Arguments: STEPS and the
path of the weights."""

import os
import sys

import roundhouse as rh
import torch

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
HOW = os.environ.get("HOW", "in place")

compiled = 0


def backend(graph, _):
    """PyTorch calls this for each compiled graph."""
    global compiled
    compiled += 1
    return graph.forward


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if HOW == "in parts":
            torch._dynamo.graph_break()
        return self.second(x)


torch.manual_seed(3)
points = torch.randn(96, 8)
dataset = torch.utils.data.TensorDataset(points, (points[:, 0] > 0).long())
model = Network()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
if HOW == "beside":
    called = torch.compile(model, backend=backend)
else:
    model.compile(backend=backend)
    called = model

with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(called)
    # All batches have the same size, because PyTorch compiles again for another size.
    for batch in job.steps(dataset, job.sampler(len(dataset), 12, steps=STEPS, seed=5)):
        loss = torch.nn.functional.cross_entropy(net(batch.x), batch.y)
        loss.backward()
        job.commit(loss, opt)
        print(f"of generation {job.generation}: compiled {compiled} times", flush=True)
    job.save_result(WEIGHTS)
