"""Trains the same models, batches and optimizers with PyTorch eager and DistributedDataParallel
over Gloo, or with a model or an optimizer that the processes share.

This is one of `--world` processes. Rank 0 prints one line: the median steps per second over several
windows, and the largest peak of the resident memory of a process in MiB. The samples are synthetic
and in memory, so no reader is measured.
"""
import argparse
import math
import os
import resource
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def mlp():
    """An MLP of 64-256-256-10."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class Residual(nn.Module):
    """The basic residual block of He et al., 2016."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        kept = x if self.shortcut is None else self.shortcut(x)
        x = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(x)) + kept)


def resnet18():
    """ResNet-18 for images of 32x32, with a 3x3 stem and without pooling."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Bottleneck(nn.Module):
    """The block of ResNet-50 v1.5: the 3x3 convolution has the stride."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        kept = x if self.shortcut is None else self.shortcut(x)
        return functional.relu(self.layers(x) + kept)


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Block(nn.Module):
    """A pre-norm transformer block with causal attention, as GPT-2's."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length = x.shape[:2]
        heads = [part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Logits of the next token; the last layer shares the embedding's weights."""

    def __init__(self, layers=4, width=256, heads=4, context=128, vocabulary=512):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.norm(self.blocks(x)) @ self.tokens.weight.T


def classified(shape, number):
    return torch.rand(number, *shape), torch.randint(10, (number,))


def written(number, context=128, vocabulary=512):
    text = torch.randint(vocabulary, (number, context + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


MICRO_BATCHES = 4

# name: (model, samples of a given number, global batch, optimizer)
CASES = {
    "mlp": (mlp, lambda number: classified((64,), number), 64, "sgd"),
    "resnet18": (resnet18, lambda number: classified((3, 32, 32), number), 32, "sgd"),
    "gpt2": (Gpt2, written, 8, "adamw"),
    "gpt2-wide": (lambda: Gpt2(8, 512, 8, 128, 8192), lambda number: written(number, 128, 8192), 8, "adamw"),
    "resnet50": (resnet50, lambda number: classified((3, 224, 224), number // 2), 256, "sgd"),
    "gpt2-124m": (
        lambda: Gpt2(12, 768, 12, 1024, 50304), lambda number: written(number, 1024, 50257), 16, "adamw",
    ),
}


def divide(model, mesh):
    """Divides the blocks of a Gpt2, for speed only: the fused matrix is cut across queries, keys
    and values. Embedding and loss stay whole, unlike the trainer's."""
    for block in model.blocks:
        block.heads //= mesh.size()
        layers = {"qkv": ColwiseParallel(), "proj": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh, layers)


class Stage(nn.Module):
    """Some blocks of a Gpt2, and an embedding or scores at the ends."""

    def __init__(self, model, index, number):
        super().__init__()
        size = len(model.blocks)
        self.blocks = model.blocks[size * index // number:size * (index + 1) // number]
        self.tokens, self.places, self.norm = model.tokens, model.places, model.norm
        self.is_first, self.is_last = index == 0, index + 1 == number

    def forward(self, x):
        if self.is_first:
            x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        x = self.blocks(x)
        return self.norm(x) @ self.tokens.weight.T if self.is_last else x


class Losses:
    """Reads the loss of each step, as every trainer does to detect a loss that is not finite. On a
    GPU it reads the loss one step late, so that the host does not wait for the step that it has
    just launched."""

    def __init__(self, device):
        self.late, self.number = device == "cuda", 0
        if self.late:
            self.read = [torch.empty((), pin_memory=True) for _ in range(2)]
            self.there = [torch.cuda.Event() for _ in range(2)]

    def read_loss(self, loss):
        if not self.late:
            return loss.item()
        now, before = self.number % 2, (self.number + 1) % 2
        self.read[now].copy_(loss.detach(), non_blocking=True)
        self.there[now].record()
        self.number += 1
        if self.number == 1:
            return None
        self.there[before].synchronize()
        return self.read[before].item()


class Saves:
    """Saves the state with async_save, alternately into two directories in memory. The next save
    waits for the one before, because two at a time are not supported."""

    def __init__(self, every, model, update):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.every, self.model, self.update = every, model, update
        self.place = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.number, self.running = 0, None

    def after_step(self):
        self.number += 1
        if self.number % self.every:
            return
        if self.running:
            self.running.result()
        state = {"model": self.model.state_dict(), "optimizer": self.update.state_dict()}
        slot = f"{self.place.name}/{self.number // self.every % 2}"
        self.running = dcp.async_save(state, checkpoint_id=slot)

    def end(self):
        if self.running:
            self.running.result()
        self.place.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CASES, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--port", type=int, default=29611)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    ways = ["none", "zero1", "fsdp", "tensor", "pipeline"]
    parser.add_argument("--parallel", choices=ways, default="none", help="how the processes divide the model")
    parser.add_argument("--save-every", type=int, help="save the state into memory after so many steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(7)
    if options.device == "cuda":
        # The trainer's default.
        torch.backends.cudnn.benchmark = True
    losses = Losses(options.device)
    make, sample, batch, optimizer = CASES[options.model]
    # channels_last is the memory layout that tensor cores need.
    layout = torch.channels_last if options.model == "resnet50" else torch.preserve_format
    model = make().to(options.device, memory_format=layout)
    inputs, targets = (tensor.to(options.device) for tensor in sample(1024))
    if options.world > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
        dist.init_process_group("gloo", rank=options.rank, world_size=options.world)
        if options.parallel == "fsdp":
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        elif options.parallel == "tensor":
            divide(model, init_device_mesh(options.device, (options.world,)))
        elif options.parallel == "pipeline":
            model = Stage(model, options.rank, options.world)
            stage = PipelineStage(model, options.rank, options.world, torch.device(options.device))

            def sum_of(scores, wanted):
                total = functional.cross_entropy(scores.flatten(0, -2), wanted.flatten(), reduction="sum")
                return total / (batch * math.prod(targets.shape[1:]))

            schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=sum_of, scale_grads=False)
        else:
            model = DistributedDataParallel(model)
    if optimizer == "sgd":
        update = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    elif options.parallel == "zero1":
        update = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        # Kernels for many tensors take tensors of one kind.
        divided = [it for it in model.parameters() if isinstance(it, DTensor)]
        whole = [it for it in model.parameters() if not isinstance(it, DTensor)]
        update = torch.optim.AdamW([{"params": it} for it in (whole, divided) if it], lr=1e-4)
    # Processes that divide layers compute the same samples.
    rank, world = (0, 1) if options.parallel in ("tensor", "pipeline") else (options.rank, options.world)
    order = torch.randperm(len(inputs), device=options.device)

    saves = Saves(options.save_every, model, update) if options.save_every else None

    def step(number):
        loss = train(number)
        if saves:
            saves.after_step()
        return loss

    def train(number):
        start = number * batch % len(inputs)
        first = start + batch * rank // world
        last = start + batch * (rank + 1) // world
        mine = order[first:last]
        if options.parallel == "pipeline":
            update.zero_grad()
            parts = []
            given = (inputs[mine],) if model.is_first else ()
            schedule.step(*given, target=targets[mine] if model.is_last else None, losses=parts)
            # The first and the last stage have the embedding, and PyTorch does not tie them.
            dist.all_reduce(model.tokens.weight.grad)
            update.step()
            return losses.read_loss(torch.stack(parts).sum()) if model.is_last else None
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            scores = model(inputs[mine].contiguous(memory_format=layout))
            loss = functional.cross_entropy(scores.flatten(0, -2), targets[mine].flatten(), reduction="sum")
        loss = loss * world / (batch * math.prod(targets.shape[1:]))
        update.zero_grad()
        loss.backward()
        update.step()
        return losses.read_loss(loss)

    # Rank 0 determines the number of steps in a window, so that all ranks make the same number.
    for number in range(10):
        step(number)
    started = time.perf_counter()
    for number in range(10):
        step(number)
    each = torch.tensor([(time.perf_counter() - started) / 10])
    if options.world > 1:
        dist.broadcast(each, 0)
    window = max(3, int(options.seconds / 5 / each.item()))
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        for number in range(window):
            step(number)
        if options.device == "cuda":
            torch.cuda.synchronize()
        rates.append(window / (time.perf_counter() - started))
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])
    if options.world > 1:
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        dist.destroy_process_group()
    if saves:
        saves.end()
    if options.rank == 0:
        print(f"{statistics.median(rates):.2f} {peak.item():.0f}", flush=True)
    # With FSDP2 a thread of PyTorch may abort the process while Python ends.
    os._exit(0)


if __name__ == "__main__":
    main()
