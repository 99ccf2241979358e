"""Trains a small network by slices. Arguments: STEPS and the path of the state at the end."""

import os
import sys

import roundhouse as rh
import torch

STEPS, RESULT = int(sys.argv[1]), sys.argv[2]
SLICES = int(os.environ["SLICES"]) if os.environ.get("SLICES") else None
KILL_AT = os.environ.get("KILL_AT")


class Net(torch.nn.Module):
    """A network whose ``rare`` layer computes in one slice of every other step."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 96)
        self.norm = torch.nn.BatchNorm1d(96)
        self.drop = torch.nn.Dropout(0.2)
        self.rare = torch.nn.Linear(96, 96)
        self.last = torch.nn.Linear(96, 2)

    def forward(self, x, *, is_rare=False):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(self.rare(x) if is_rare else x)


torch.manual_seed(3)
points = torch.randn(195, 8)
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)
model = Net()
if os.environ.get("SGD"):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
# Loss, norm of the gradients and two random numbers for each step.
# Loss and accuracy of each evaluation.
seen, evaluated = torch.zeros(STEPS, 4, dtype=torch.float64), torch.zeros(STEPS + 1, 2, dtype=torch.float64)
# A number that the optimizer draws.
drawn = torch.zeros(())
opt.register_step_post_hook(lambda *_: drawn.copy_(torch.rand(())))


def measure(batch):
    x, y = batch
    scores = model(x + 0.1 * torch.randn_like(x))
    return {"loss": torch.nn.functional.cross_entropy(scores, y, reduction="sum").item(), "accuracy": (scores.argmax(1) == y).sum().item()}


def note(means):
    evaluated[job.steps_done] = torch.tensor([means["loss"], means["accuracy"]], dtype=torch.float64)


with rh.join(state={"model": model, "opt": opt, "seen": seen, "evaluated": evaluated}) as job:
    net = job.model(model)
    # The last batch of an epoch has 3 samples, and some slices of the others one more than others.
    reduction = "sum" if os.environ.get("WEIGHS") else "mean"
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5, slices=SLICES, reduction=reduction)
    evaluation = rh.Evaluation(dataset, measure, batch_size=16, every_epochs=0, every_steps=7, then=note)
    for batch in job.steps(dataset, sampler, evaluation=evaluation, num_workers=int(os.environ.get("LOADERS", "0"))):
        step, (x, y) = batch.step, batch
        if SLICES:
            print(f"rank {job.rank}: step {step.number}, slice {step.slice} of {len(x)} samples", flush=True)
        if len(x) == 1:
            x, y = x.repeat(2, 1), y.repeat(2)  # BatchNorm needs two samples.
        is_rare = step.number % 2 == 1 and step.slice == 1
        losses = torch.nn.functional.cross_entropy(net(x, is_rare=is_rare), y, reduction="none")
        weights = y + 1.0
        weighed = {"weight": weights.sum()} if os.environ.get("WEIGHS") else {}
        loss = (losses * weights).sum() if weighed else losses.mean()
        loss.backward()
        if KILL_AT == f"{job.rank}:{step.number}:{step.slice}":
            os.kill(os.getpid(), 9)
        if job.commit(loss, opt, max_grad_norm=0.5, **weighed):
            seen[step.number - 1] = torch.tensor([job.loss, job.grad_norm, drawn.item(), torch.rand(()).item()], dtype=torch.float64)
    tensors = {"seen": seen, "evaluated": evaluated, **model.state_dict()}
    for index, values in opt.state_dict()["state"].items():
        tensors |= {f"opt.{index}.{name}": value for name, value in values.items() if torch.is_tensor(value)}
    kept = torch.nn.Module()
    for name, value in tensors.items():
        kept.register_buffer(name.replace(".", "_"), value)
    job.save_result(RESULT, kept)
