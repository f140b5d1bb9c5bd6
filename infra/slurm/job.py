"""The SLURM job that this process is part of, from the environment that SLURM gives its tasks."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

ASK_SECONDS = 30.0
# Ports below those that systems hand out by themselves, above those of well-known services.
FIRST_PORT, PORTS = 12_000, 20_000


@dataclass(frozen=True)
class Job:
    """id: SLURM's number. restarts: how often it was requeued and started again. end: by when SLURM ends it, in seconds
    since 1970; None where it has no limit, or nobody says."""

    id: str
    restarts: int
    end: float | None

    @property
    def seconds_left(self) -> float | None:
        """Until SLURM ends the job. A signal that comes when much is left is a pre-emption, not the limit."""
        return None if self.end is None else self.end - time.time()

    def requeue(self) -> bool:
        """Puts this job back into the queue: it is ended, and started again with the same script. Called by one task.

        False, and nothing is done, for a job that was cancelled or is not to be requeued. Raises OSError where SLURM does not.
        """
        said = _ask("scontrol", "show", "job", self.id)
        if not re.search(r"\bJobState=RUNNING\b", said) or not re.search(r"\bRequeue=1\b", said):
            return False
        _ask("scontrol", "requeue", self.id)
        return True


def current_job(environment: Mapping[str, str] = os.environ) -> Job | None:
    """None outside of a job."""
    if not (number := environment.get("SLURM_JOB_ID")):
        return None
    return Job(number, int(environment.get("SLURM_RESTART_COUNT") or 0), _end(number, environment))


def in_step(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether srun started this process, as one of its tasks; a batch script and an allocation's shell are not."""
    return "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment


def rank_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that torchrun would have set, for a task of a step. The ranks meet on the node of rank 0, at a port
    that follows from the job's and the step's number; MASTER_PORT and MASTER_ADDR, where they are set, go before."""
    number = int(environment["SLURM_JOB_ID"]) * 7 + int(environment["SLURM_STEP_ID"])
    if environment["SLURM_PROCID"] == "0" and environment["SLURM_NODEID"] != "0":
        raise ValueError("rank 0 is not on the step's first node, where the others look for it: leave --distribution out, or "
                         "set MASTER_ADDR")
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "MASTER_ADDR": environment.get("MASTER_ADDR") or address(first_host(environment["SLURM_STEP_NODELIST"])),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(FIRST_PORT + number % PORTS),
    }


def first_host(nodes: str) -> str:
    """Of a node list in SLURM's short form: node[01-03,07],other is node01."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if first is None:
        raise ValueError(f"node list {nodes!r} names no node")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group())


def address(node: str) -> str:
    """Where a node can be reached: by its name, or where the name is SLURM's alone, at the address that SLURM uses."""
    try:
        socket.getaddrinfo(node, None)
        return node
    except OSError:
        said = _ask("scontrol", "show", "node", node)
        found = re.search(r"NodeAddr=(\S+)", said)
        if found is None:
            raise ValueError(f"node {node!r} has no address that this machine or SLURM knows: set MASTER_ADDR") from None
        return found.group(1)


def _end(number: str, environment: Mapping[str, str]) -> float | None:
    """SLURM says it in the environment from version 23 on, and when asked before."""
    if said := environment.get("SLURM_JOB_END_TIME"):
        return float(said)
    if shutil.which("squeue") is None:
        return None
    text = _ask("squeue", "--noheader", f"--jobs={number}", "--format=%e").strip()
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None  # N/A: no limit


def _ask(*command: str) -> str:
    """Output of a SLURM command. OSError where it fails."""
    plain = {"SLURM_TIME_FORMAT": "standard"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False, env=os.environ | plain)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
