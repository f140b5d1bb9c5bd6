"""What a rank knows of itself, and its process group."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from common.device import Device


@dataclass(frozen=True)
class RankContext:
    """First argument of every function that is launched: this rank, of `size`, and its device."""

    rank: int
    size: int
    local_rank: int
    device: Device

    @property
    def leads(self) -> bool:
        """True on the one rank that speaks for all."""
        return self.rank == 0


@contextmanager
def process_group(context: RankContext, store: dist.Store | None, timeout: timedelta) -> Iterator[None]:
    """The default process group over all ranks; through MASTER_ADDR and MASTER_PORT without a `store`.

    `timeout` is how long a collective may wait for its peers.
    """
    context.device.activate()
    dist.init_process_group(context.device.backend, rank=context.rank, world_size=context.size, store=store,
                            init_method=None if store else "env://", timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()


def talk_over_loopback() -> None:
    """Make gloo use the loopback interface, which exists and works whatever the host's name resolves to."""
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
