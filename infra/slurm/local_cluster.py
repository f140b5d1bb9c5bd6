"""A real SLURM cluster of several nodes on this one machine: munge, a controller, and one slurmd a node.

Everything it writes lies in one folder of its own, and nothing under /etc is read or changed: the munge key and
socket, slurm.conf (which clients find through SLURM_CONF), state and logs. The nodes n1, n2, ... share the
machine's address and differ by port. There is no accounting store, and processes are told apart by their parents
(proctrack/linuxproc), which needs no control groups. A requeued job waits until the credentials of its first start
have expired: 5 seconds here, 120 by default.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

DEBIAN_PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo")
INSTALL = "python -m infra.slurm install"
START_SECONDS = 30.0
END_SECONDS = 10.0
MOST_NODES = 64
# SLURM's own path of Debian's daemons, which a user's PATH often lacks.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

_CONF = """\
ClusterName=laptop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0,defer_batch
ReturnToService=2
KillWait=5
MinJobAge=300
SlurmdTimeout=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=2
"""


class ClusterError(RuntimeError):
    """One line: why the cluster cannot be had here, and what to do."""


def default_folder() -> Path:
    """Short, since the path of a Unix socket holds 107 bytes at most."""
    return Path(tempfile.gettempdir()) / f"slurm-{os.getuid()}"


def missing() -> list[str]:
    """Programs of SLURM and munge that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


def install() -> None:
    """Installs Debian's packages. The only function that changes the system. Raises ClusterError where it cannot."""
    if shutil.which("apt-get") is None:
        raise ClusterError("this system has no apt-get: install munge, slurmctld, slurmd and SLURM's clients with its own means")
    become = [] if os.getuid() == 0 else ["sudo", "-n"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *DEBIAN_PACKAGES]):
        command = [*become, "apt-get", *words]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ClusterError(f"`{' '.join(command)}` cannot be run: {error.strerror}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ClusterError(f"`{' '.join(command)}` failed: {said[-1] if said else done.returncode}")


@dataclass(frozen=True)
class LocalCluster:
    """The cluster in `folder`, which runs or does not."""

    folder: Path

    @property
    def conf(self) -> Path:
        """What SLURM_CONF must name for sbatch, srun and squeue to find the cluster."""
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """For the daemons and clients."""
        return os.environ | {"PATH": _PATH, "SLURM_CONF": str(self.conf)}

    @property
    def running(self) -> bool:
        return any(self._pids())

    def start(self, nodes: int = 2) -> None:
        """Starts all daemons and waits until every node takes jobs. Raises ValueError for a wrong number or a cluster that
        runs already, ClusterError where it cannot be started; nothing is left running then."""
        if not 1 <= nodes <= MOST_NODES:
            raise ValueError(f"--nodes {nodes}: use 1 to {MOST_NODES}")
        if lacking := missing():
            raise ClusterError(f"SLURM is not installed here ({', '.join(lacking)} not found): run `{INSTALL}` "
                               f"(Debian's {', '.join(DEBIAN_PACKAGES)})")
        if self.running:
            raise ValueError(f"a cluster runs in {self.folder} already: stop it first, or use it "
                             f"(export SLURM_CONF={self.conf})")
        if len(os.fsencode(self.folder / "munge.socket.2")) > 107 or set(str(self.folder)) & set("#%\\ \n\"'=,"):
            raise ValueError(f"--folder {str(self.folder)!r}: use a shorter path of letters, digits, /, . _ and -")
        self._prepare(nodes)
        try:
            self._start_daemons(nodes)
            self._wait_idle(nodes)
        except BaseException:
            self.stop()
            raise

    def _prepare(self, nodes: int) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700, parents=True)
        (self.folder / "state").mkdir()
        for number in range(nodes):
            (self.folder / f"n{number + 1}").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        controller, *ports = _free_ports(nodes + 1)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        self.conf.write_text(_CONF.format(
            folder=self.folder, nodes=nodes, host=socket.gethostname().partition(".")[0], controller=controller,
            user=pwd.getpwuid(os.getuid()).pw_name, ports=",".join(map(str, ports)),
            cpus=os.cpu_count(), memory=memory))

    def _start_daemons(self, nodes: int) -> None:
        munge = [f"--{name}={self.folder}/munge.{end}" for name, end in (
            ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]
        # munged warns of a socket in a folder that not everyone may enter; --force takes it all the same.
        self._start_one("munged", "--force", *munge)
        self._start_one("slurmctld", "-c")
        for number in range(nodes):
            self._start_one("slurmd", "-c", "-N", f"n{number + 1}")

    def _start_one(self, *command: str) -> None:
        """Each of these puts itself into the background once it is up."""
        done = subprocess.run(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=START_SECONDS, check=False, cwd=self.folder)
        if done.returncode:
            raise ClusterError(f"{command[0]} did not start: {done.stdout.strip() or f'exit status {done.returncode}'}")

    def _wait_idle(self, nodes: int) -> None:
        until = time.monotonic() + START_SECONDS
        while (states := self.states()).count("idle") < nodes:
            if time.monotonic() > until:
                raise ClusterError(f"nodes are not ready after {START_SECONDS:g} s ({', '.join(states) or 'no answer'}): "
                                   f"see the logs in {self.folder}")
            time.sleep(0.1)

    def states(self) -> list[str]:
        """Of each node, as sinfo names it; empty where the controller does not answer."""
        done = subprocess.run(["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"], env=self.environment,
                              capture_output=True, text=True, timeout=START_SECONDS, check=False)
        return done.stdout.split() if done.returncode == 0 else []

    def stop(self) -> None:
        """Ends every job and daemon, and removes the folder. Raises ClusterError for a daemon that does not end."""
        pids = self._pids()
        if pids and self.conf.exists():
            subprocess.run(["scancel", f"--user={os.getuid()}", "--signal=KILL", "--full"], env=self.environment,
                           capture_output=True, timeout=START_SECONDS, check=False)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while left := self._pids():
            if time.monotonic() > until:
                raise ClusterError(f"processes {', '.join(map(str, left))} of the cluster in {self.folder} do not end")
            time.sleep(0.05)
        if self.conf.exists():
            shutil.rmtree(self.folder)

    def _pids(self) -> list[int]:
        """Daemons of this cluster that run: their pid files may be older than the machine's last start."""
        found = []
        for file in self.folder.glob("*.pid"):
            text = file.read_text().strip() if file.exists() else ""
            command = Path("/proc") / text / "comm"
            if text.isdecimal() and command.exists() and command.read_text().strip() in ("munged", "slurmctld", "slurmd"):
                found.append(int(text))
        return found


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def use_running_cluster() -> None:
    """Where nothing else tells SLURM's clients what cluster to ask, they ask the one of this module, if it runs."""
    found = LocalCluster(default_folder())
    if "SLURM_CONF" not in os.environ and not Path("/etc/slurm/slurm.conf").exists() and found.running:
        os.environ["SLURM_CONF"] = str(found.conf)
