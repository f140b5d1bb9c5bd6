"""Functions that the launcher's tests run on ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def place(context):
    return context.rank, context.size, os.getpid(), torch.get_num_threads()


def all_sum(context, value):
    total = torch.tensor([float(value + context.rank)])
    dist.all_reduce(total)
    return total.item()


def echo(context, value):
    return value


def uneven_exchange(context):
    """Rank r sends r + 1 copies of its number to every rank, bf16 among them."""
    sent = torch.full(((context.rank + 1) * context.size,), context.rank, dtype=torch.bfloat16)
    sizes = [rank + 1 for rank in range(context.size)]
    received = torch.empty(sum(sizes), dtype=torch.bfloat16)
    dist.all_to_all_single(received, sent, sizes, [context.rank + 1] * context.size)
    return received


def raise_on(context, rank):
    """`rank` raises while the others wait for it in a collective."""
    if context.rank == rank:
        raise ValueError(f"rank {rank} does not like its data")
    dist.all_reduce(torch.zeros(1))


def raise_after_peers(context, rank):
    """The other ranks meet the closed connections first, before `rank` has reported its own error."""
    if context.rank == rank:
        try:
            raise ValueError("the cause")
        finally:
            dist.destroy_process_group()
            time.sleep(0.5)
    dist.all_reduce(torch.zeros(1))


def wrap_lost_connection(context, rank):
    """`rank` exits; the others wrap the lost connection in an error of their own."""
    if context.rank == rank:
        time.sleep(0.1)
        os._exit(7)
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        raise KeyError("while saving") from error


def leave_early(context):
    """Rank 0 returns while the others still wait for it."""
    if context.rank > 0:
        dist.all_reduce(torch.zeros(1))


def kill_on(context, rank, number):
    """`rank` is ended by a signal in the middle of a collective that others have entered."""
    if context.rank == rank:
        time.sleep(0.1)
        os.kill(os.getpid(), number)
    dist.all_reduce(torch.zeros(1))


def exit_on(context, rank, code):
    if context.rank == rank:
        sys.exit(code)
    dist.all_reduce(torch.zeros(1))


def exhaust_memory(context, rank, limit):
    """`rank` asks for more memory than `limit` bytes, which its process may not exceed."""
    import resource

    if context.rank == rank:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        torch.zeros(limit, dtype=torch.uint8)
    dist.all_reduce(torch.zeros(1))


def crash_on(context, rank):
    """`rank` reads from address 0."""
    import ctypes

    if context.rank == rank:
        ctypes.string_at(0)
    dist.all_reduce(torch.zeros(1))


def wait_for_nobody(context, rank):
    """`rank` alone enters a collective; the others return."""
    if context.rank == rank:
        dist.recv(torch.zeros(1), src=(rank + 1) % context.size)
    else:
        time.sleep(30)


def return_unpicklable(context):
    return lambda: context.rank


def write_pids_and_sleep(context, folder, with_child=False):
    """Leave the process's number in `folder`, and that of a process it started; then stay."""
    pids = [os.getpid()]
    if with_child:
        pids.append(subprocess.Popen(["sleep", "60"]).pid)
    partial = Path(folder) / f".{context.rank}"
    partial.write_text(" ".join(map(str, pids)))
    partial.rename(Path(folder) / f"rank{context.rank}")
    time.sleep(60)


def print_lines(context):
    print(f"out of rank {context.rank}")
    print(f"error of rank {context.rank}", file=sys.stderr)
    os.write(1, f"raw of rank {context.rank}\n".encode())


def wait_for_signal(context, folder):
    """Returns the signal that reached this rank."""
    received = []
    signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    (Path(folder) / f"rank{context.rank}").write_text(str(os.getpid()))
    until = time.monotonic() + 20
    while not received and time.monotonic() < until:
        time.sleep(0.01)
    return received


def set_globals(context):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    os.environ["LEFT_BEHIND"] = "1"
    return os.getpid()


def read_globals(context):
    leaf = torch.ones(1, requires_grad=True)
    return torch.get_default_dtype(), (leaf * 2).requires_grad, "LEFT_BEHIND" in os.environ, os.getpid()


def subgroup_sums(context):
    """A group made in this call alone: pairs of neighbours."""
    groups = [dist.new_group([low, low + 1]) for low in range(0, context.size, 2)]
    total = torch.tensor([float(context.rank)])
    dist.all_reduce(total, group=groups[context.rank // 2])
    return total.item()


def environment(context, name):
    return os.environ.get(name)


def print_and_die(context):
    """Every rank writes a line; rank 1 is killed when all have."""
    print(f"last words of rank {context.rank}")
    dist.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)


class SlowToReport(ValueError):
    """An error that takes a while to be put into words."""

    def __str__(self):
        time.sleep(0.05)
        return "first"


def raise_in_turn(context, folder):
    """Rank 3 raises first; the others raise after it, and their reports arrive before its own."""
    mark = Path(folder) / "raised"
    if context.rank == 3:
        mark.touch()
        raise SlowToReport
    while not mark.exists():
        time.sleep(0.001)
    time.sleep(0.02)
    raise ValueError("later")


def leave_without_a_word(context, rank):
    if context.rank == rank:
        os._exit(0)
    dist.all_reduce(torch.zeros(1))


def is_alive(pid):
    """True for a running process; a zombie that nobody has waited for has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def all_gone(pids, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(is_alive(pid) for pid in pids):
        time.sleep(0.02)
    return not any(is_alive(pid) for pid in pids)


def wait_for_pids(folder, count, seconds=30):
    """What `count` ranks wrote by write_pids_and_sleep, once all have."""
    until = time.monotonic() + seconds
    while len(list(Path(folder).glob("rank*"))) < count:
        assert time.monotonic() < until, "the ranks did not start"
        time.sleep(0.02)
    return [int(pid) for file in sorted(Path(folder).glob("rank*")) for pid in file.read_text().split()]


def environment_with_path():
    """The environment for a command that imports this project from any folder."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root}
