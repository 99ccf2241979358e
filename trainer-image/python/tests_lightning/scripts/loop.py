"""Trains a small network in 64 bits in a loop with Fabric. Arguments: the directory of its output,
and the names of features. With ``plain`` it uses no job."""

import inspect
import json
import pathlib
import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
# Before lightning 2.6 fabric.setup takes no scheduler.
IS_OLD = "scheduler" not in inspect.signature(lightning.Fabric.setup).parameters
if not IS_PLAIN:
    import roundhouse.lightning

BATCH, NUM_SAMPLES, EPOCHS = 6, 32, 3
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.randn(NUM_SAMPLES, 4), torch.randint(3, (NUM_SAMPLES,)))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
optimizer = (torch.optim.AdamW if "adamw" in USES else torch.optim.SGD)(model.parameters(), lr=0.05)
interval = "epoch" if "epochs" in USES else "step"
if not IS_OLD:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5 if "epochs" in USES else 0.9)

options = {} if IS_PLAIN else {"strategy": roundhouse.lightning.ElasticFabric(global_batch_size=BATCH, interval=interval)}
fabric = lightning.Fabric(accelerator="cpu", **options)
if IS_PLAIN or IS_OLD:
    model, optimizer = fabric.setup(model, optimizer)
else:
    model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
loader, evaluated = fabric.setup_dataloaders(DataLoader(data, BATCH), DataLoader(data, 5))
steps, losses = [], []
for epoch in range(EPOCHS) if IS_PLAIN else fabric.strategy.epochs(EPOCHS):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        if "clip" in USES:
            fabric.clip_gradients(model, optimizer, max_norm=0.3)
        optimizer.step()
        optimizer.zero_grad()
        if not IS_PLAIN and not fabric.strategy.counts:
            continue
        steps.append([len(steps) + 1 if IS_PLAIN else fabric.strategy.job.steps_done, epoch])
        if interval == "step" and not IS_OLD:
            scheduler.step()
    if interval == "epoch" and not IS_OLD:
        scheduler.step()
    model.eval()
    with torch.no_grad():
        losses.append(
            [steps[-1][0], sum(float(torch.nn.functional.cross_entropy(model(x), y, reduction="sum")) for x, y in evaluated)]
        )
    model.train()
rank = fabric.global_rank
OUT.mkdir(exist_ok=True, parents=True)
fabric.save(OUT / "weights.pt", model.state_dict())
(OUT / f"rank-{rank}.json").write_text(json.dumps({"steps": steps, "losses": losses}))
