"""Prints the steps per second of a GPT-2 with the package (elastic) or with DDP alone (plain).

Arguments: elastic or plain, the type of the device, seconds, port."""

import sys
import time

import torch

WHICH, DEVICE, SECONDS, PORT = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
# 124 million weights, or a small model that a CPU trains in seconds.
LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY, BATCH = (12, 768, 12, 1024, 50304, 16) if DEVICE == "cuda" else (2, 64, 2, 32, 512, 4)
WARM_UP = 5


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.scores = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.scores.weight = self.tokens.weight
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        return self.scores(self.layers(x, mask=self.mask, is_causal=True))


def loss_of(net, tokens):
    tokens = tokens.to(DEVICE, non_blocking=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        scores = net(tokens)
    return torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Clock:
    """Measures the steps after the warm-up."""

    def __init__(self):
        self.steps, self.started = -WARM_UP, 0.0

    def is_over(self, loss):
        self.steps += 1
        if self.steps == 0:
            loss.item()
            self.started = time.perf_counter()
        if self.steps > 0 and time.perf_counter() - self.started > SECONDS:
            loss.item()
            print(f"pace {self.steps / (time.perf_counter() - self.started):.3f}", flush=True)
            return True
        return False


torch.manual_seed(1)
dataset = torch.utils.data.TensorDataset(torch.randint(VOCABULARY, (512, CONTEXT)))
model = Network().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
clock = Clock()
if WHICH == "elastic":
    import roundhouse as rh

    with rh.join(state={"model": model, "optimizer": optimizer}) as job:
        net = job.model(model)
        for batch in job.steps(dataset, job.sampler(512, BATCH, steps=10_000_000), pin_memory=DEVICE == "cuda"):
            loss = loss_of(net, batch[0])
            loss.backward()
            job.commit(loss, optimizer, max_grad_norm=1.0)
            if clock.is_over(loss):
                break
else:
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"tcp://127.0.0.1:{PORT}", rank=0, world_size=1)
    net = torch.nn.parallel.DistributedDataParallel(model)
    loader = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, pin_memory=DEVICE == "cuda")
    is_over = False
    while not is_over:
        for (tokens,) in loader:
            loss = loss_of(net, tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if is_over := clock.is_over(loss):
                break
    torch.distributed.destroy_process_group()
