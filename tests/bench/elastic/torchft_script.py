"""The script for torchft: train.py's MLP with the same digits, batch and optimizer, written like
torchft's DDP example. With several processes in a replica group they share the model by FSDP2, and
FSDP2's hook sums the gradients over the groups, as in torchft's test of FSDP2.

The number of the step and the number of participants determine the samples of a step, so that no
sample is skipped; torchft's own sampler does not guarantee that. Each process appends a line per
committed step, as train.py does, to a new file when the number of participants changes.
"""
import argparse
import datetime
import gzip
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torchft
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def read(path, header):
    """The bytes of an IDX file after its header."""
    return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]), dtype=torch.uint8)


def shard(net, mesh, hook):
    """Shards the MLP. ``hook`` sums what a process has of the gradients over the replica groups."""
    for module in (net[0], net):
        fully_shard(module, mesh=mesh).set_all_reduce_hook(hook)


def local(tensor):
    """What this process has of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--timeout", type=int, required=True, help="seconds a collective may take")
    parser.add_argument("--store-port", type=int, default=0, help="port of the replica group's store")
    parser.add_argument("--rank", type=int, default=0, help="rank in the replica group")
    parser.add_argument("--size", type=int, default=1, help="processes of a replica group")
    options = parser.parse_args()

    labels = read(options.data / "train-labels-idx1-ubyte.gz", 8).long()
    images = read(options.data / "train-images-idx3-ubyte.gz", 16).view(len(labels), -1).float() / 255
    batch = 64
    per_epoch = -(-len(labels) // batch)
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(images.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, int(labels.max()) + 1)
    )

    limit = datetime.timedelta(seconds=options.timeout)
    store = dist.TCPStore("127.0.0.1", options.store_port, is_master=options.rank == 0, wait_for_workers=False)
    if options.size > 1:
        dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.size, timeout=limit)
        shard(net, init_device_mesh("cpu", (options.size,)), lambda gradients: manager.allreduce(gradients).wait())
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    # FSDP2 puts whole tensors into their places in a step.
    parameters = list(net.parameters())

    def state():
        momenta = [sgd.state[one]["momentum_buffer"] if one in sgd.state else None for one in parameters]
        return {"net": list(map(local, parameters)), "momenta": list(map(local, momenta))}

    @torch.no_grad()
    def load(state):
        for parameter, values, momentum in zip(parameters, state["net"], state["momenta"], strict=True):
            local(parameter).copy_(values)
            if momentum is not None:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
                local(sgd.state[parameter]["momentum_buffer"]).copy_(momentum)

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,
        timeout=limit,
        connect_timeout=limit,
        rank=options.rank,
        world_size=options.size,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"worker-{options.worker}",
        hostname="127.0.0.1",
    )
    model = torchft.DistributedDataParallel(manager, net) if options.size == 1 else net
    optimizer = torchft.Optimizer(manager, sgd)

    ordered, order, worlds, lines = None, None, [], None
    while True:
        # zero_grad starts a quorum, which determines the participants.
        optimizer.zero_grad()
        manager.wait_quorum()
        step, world, rank = manager.current_step(), manager.num_participants(), manager.participating_rank()
        epoch, cursor = step // per_epoch, step % per_epoch * batch
        if ordered != epoch:
            ordered, order = epoch, torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        size = min(batch, len(labels) - cursor)
        # A process that receives the state participates from the next step. Its gradients do not
        # count in this one.
        takes_part = rank is not None
        processes, place = world * options.size, (rank or 0) * options.size + options.rank
        first, last = (cursor + size * (place + part) // processes for part in (0, 1)) if takes_part else (cursor, cursor + 1)
        mine = order[first:last]
        # torchft divides the sum over the participants by their number, and FSDP2 that over the
        # processes.
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum") * max(processes, 1) / size
        loss.backward()
        optimizer.step()
        if takes_part and manager.current_step() > step and options.rank == 0:
            if worlds[-1:] != [world]:
                worlds.append(world)
                path = options.out / f"steps-{options.worker}-{os.getpid()}-{len(worlds)}"
                lines = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            # Those of all processes of the group.
            first, last = (cursor + size * (rank + part) // world for part in (0, 1))
            os.write(lines, f"{time.time():.6f} {step + 1} {world} {first} {last} {epoch}\n".encode())


if __name__ == "__main__":
    main()
