"""Trains a small GPT in 64 bits, which the processes of each worker shard with FSDP2. Arguments:
STEPS and the path of the weights."""

import sys

import roundhouse as rh
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
NUM_TOKENS, CONTEXT, WIDTH, HEADS = 61, 12, 18, 3
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
text = torch.tensor([place * place % NUM_TOKENS for place in range(600)])
windows = text.unfold(0, CONTEXT + 1, 1)
dataset = torch.utils.data.TensorDataset(windows[:, :-1], windows[:, 1:])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention, self.mix = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        # A number of rows that two processes do not divide.
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH + 1), torch.nn.Linear(4 * WIDTH + 1, WIDTH)

    def forward(self, x_btc):
        parts = self.attention(self.first(x_btc)).unflatten(-1, (3, HEADS, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x_btc = x_btc + self.mix(mixed.transpose(1, 2).flatten(2))
        return x_btc + self.down(gelu(self.up(self.second(x_btc))))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(NUM_TOKENS, WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        self.block = Block()
        self.norm = torch.nn.LayerNorm(WIDTH)
        # As in GPT-2, the first and the last layer have one weight.
        self.head = torch.nn.Linear(WIDTH, NUM_TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids_bt):
        x_btc = self.tokens(ids_bt) + self.places.weight[: ids_bt.shape[1]]
        return self.head(self.norm(self.block(x_btc)))


model = GPT()
mesh = rh.replica_mesh()
fully_shard(model.block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

with rh.join(state={"model": model, "optimizer": optimizer, "schedule": schedule}) as job:
    sampler = job.sampler(len(dataset), 16, steps=STEPS, seed=5)
    net = job.model(model)
    for batch in job.steps(dataset, sampler):
        ids, wanted = batch
        loss = cross_entropy(net(ids).flatten(0, 1), wanted.flatten())
        loss.backward()
        if job.commit(loss, optimizer, schedule) and job.steps_done % 100 == 0:
            print(f"step {job.steps_done}: {job.loss:.12f}", flush=True)
    job.save_result(WEIGHTS)
