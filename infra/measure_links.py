"""Times of messages between the ranks of one node, by their bytes: point to point and collectives."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from common.device import Device
from common.predict.machine import Collective
from infra.measure_device import Progress, lower_quartile
from infra.rank_context import RankContext

REPEATS = 7
SAMPLE = 2e-3  # seconds of calls that one sample holds at least
ELEMENT = 4  # bytes; messages are fp32


def measure_links(context: RankContext, sizes: tuple[int, ...], seconds: float) -> list[Collective]:
    """Each collective of the whole group, and messages from rank 0 to rank 1, at each size.

    bytes are those of the full tensor on one rank, rounded down to elements that the ranks can share evenly.
    """
    show = Progress(context.leads, 5 * len(sizes))
    found = []
    for size in sizes:
        share = max(1, size // (ELEMENT * context.size))
        for name, call in _calls(context, share):
            show.step(f"messages, ranks: {context.size}")
            took = _seconds_of(call, context.device, seconds) / (2 if name == "send" else 1)
            found.append(Collective(name, context.size, share * context.size * ELEMENT, took))
    show.end()
    return found


def slowest(found: list[list[Collective]]) -> list[Collective]:
    """What all ranks measured at once: a collective has ended when its last rank has."""
    return [replace(same[0], seconds=max(item.seconds for item in same)) for same in zip(*found, strict=True)]


def _calls(context: RankContext, share: int) -> list[tuple[str, Callable[[], None]]]:
    at = context.device.torch_device
    whole, part = torch.zeros(share * context.size, device=at), torch.zeros(share, device=at)
    other = torch.zeros_like(whole)
    calls: list[tuple[str, Callable[[], None]]] = [
        ("all_reduce", lambda: dist.all_reduce(whole)),
        ("all_gather", lambda: dist.all_gather_single(whole, part)),
        ("reduce_scatter", lambda: dist.reduce_scatter_single(part, whole)),
        ("all_to_all", lambda: dist.all_to_all_single(other, whole)),
    ]
    return [*calls, ("send", lambda: _there_and_back(context.rank, whole))]


def _there_and_back(rank: int, message: Tensor) -> None:
    """From rank 0 to rank 1 and back: two messages, one after the other. Other ranks have nothing to do."""
    if rank == 0:
        dist.send(message, 1)
        dist.recv(message, 1)
    elif rank == 1:
        dist.recv(message, 0)
        dist.send(message, 0)


def _seconds_of(call: Callable[[], None], device: Device, seconds: float) -> float:
    """Seconds of one call, of samples that all ranks begin together; the same number of calls on each."""
    call()
    _together(device)
    begin = time.perf_counter()
    call()
    device.synchronize()
    once = torch.tensor([time.perf_counter() - begin], device=device.torch_device)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    calls = max(1, math.ceil(SAMPLE / max(once.item(), 1e-6)))
    repeats = max(3, min(REPEATS, math.ceil(seconds / (once.item() * calls))))
    samples = []
    for _ in range(repeats):
        _together(device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        device.synchronize()
        samples.append((time.perf_counter() - begin) / calls)
    return lower_quartile(samples)


def _together(device: Device) -> None:
    device.synchronize()
    dist.barrier()
