"""Key-value stores that a process of this worker serves."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist

from .groups import duration

# Before PyTorch 2.8 (pytorch/pytorch#150215) a store on libuv cannot take ownership of a socket.
_HAS_LISTENING_LIBUV = torch.__version__ >= "2.8"


def serve(address: str, port: int, seconds: float) -> tuple[dist.TCPStore, int]:
    """Serves a store on one address and port of this host; other addresses of the host do not
    answer. Returns the store and its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        address,
        port,
        is_master=True,
        timeout=duration(seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=_HAS_LISTENING_LIBUV,
    )
    return store, port
