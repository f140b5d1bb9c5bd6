"""The batch script of a job, which submitit writes, and the same srun line for an allocation that is there already."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor

from infra.slurm.settings import Settings

# The shell outlives a signal to the whole job, which is the ranks' to act on, and waits for srun.
SETUP = ["trap : TERM USR1 USR2"]
# What an allocation sets for its own tasks would be taken for options of another job.
KEPT = ("SLURM_CONF", "SLURM_JWT")


class Executor(SlurmExecutor):
    """Writes and submits scripts, also without SLURM at hand; our own task is started in place of submitit's, which
    unpickles, and acts on signals in the middle of a step and on rank 0 alone."""

    @classmethod
    def affinity(cls) -> int:
        return 2


@dataclass(frozen=True)
class Script:
    """One job: its settings, name, ranks, own folder (with job.json and snapshot/) and the folder it works in."""

    settings: Settings
    name: str
    ranks: int
    folder: Path
    directory: Path
    mounts: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for path in (self.folder, self.directory):
            if not str(path).isprintable() or "%" in str(path):
                raise ValueError(f"folder {str(path)!r}: a line break or % in a path cannot be given to SLURM")

    @property
    def text(self) -> str:
        """Of the script that is submitted."""
        return self._executor()._make_submission_file_text(self._task(), "")

    def submit(self) -> str:
        """SLURM's number of the new job. Raises ValueError with what sbatch said where it is refused."""
        for name in [name for name in os.environ if name.startswith("SLURM_") and name not in KEPT]:
            del os.environ[name]
        try:
            return self._executor()._submit_command(self._task()).job_id
        except (FailedJobError, FailedSubmissionError) as error:
            said = [line for line in str(error).splitlines() if line.startswith("sbatch:")]
            raise ValueError("; ".join(said) or str(error)) from None

    def run(self) -> None:
        """In this process's allocation, which becomes srun; does not return."""
        sys.stdout.flush()
        output = str(self.folder / "%j_%t_log.out")
        command = ["srun", "--unbuffered", f"--output={output}", *self._srun(), *shlex.split(self._task())]
        os.execvp("srun", command)

    def _task(self) -> str:
        python = self.settings.container.python if self.settings.container.image else sys.executable
        return shlex.join([python, "-P", str(self.folder / "snapshot/infra/slurm/task.py"), str(self.folder)])

    def _srun(self) -> list[str]:
        settings, container = self.settings, self.settings.container
        nodes, tasks = settings.divided(self.ranks)
        words = ["--kill-on-bad-exit=1", "--open-mode=append", f"--nodes={nodes}", f"--ntasks={self.ranks}",
                 f"--ntasks-per-node={tasks}"]
        if settings.cpus_per_task:  # which srun no longer takes from the allocation, from version 22.05 on
            words.append(f"--cpus-per-task={settings.cpus_per_task}")
        if container.image:
            own = [f"{path}:{path}" for path in dict.fromkeys((self.directory, self.folder, *self.mounts))]
            words += [f"--container-image={container.image}", f"--container-mounts={','.join((*own, *container.mounts))}"]
        return words + [f"--{flag}={value}" if value else f"--{flag}" for flag, value in settings.srun.items()]

    def _executor(self) -> Executor:
        settings = self.settings
        nodes, tasks = settings.divided(self.ranks)
        flags = {"output": str(self.folder / "%j.out"), "chdir": str(self.directory),
                 "signal": f"USR1@{settings.warn_seconds}",
                 "requeue" if settings.requeue else "no-requeue": True,
                 **{flag: value or True for flag, value in settings.sbatch.items()}}
        if settings.time:
            flags["time"] = settings.time
        asked = {"partition": settings.partition, "account": settings.account, "qos": settings.qos,
                 "constraint": settings.constraint, "mem": settings.memory, "cpus_per_task": settings.cpus_per_task,
                 "gpus_per_node": min(settings.gpus_per_node, tasks)}
        made = Executor(self.folder)
        made.update_parameters(
            job_name=self.name, nodes=nodes, ntasks_per_node=tasks, stderr_to_stdout=True, srun_args=self._srun(),
            setup=SETUP, wckey=None, additional_parameters=flags,
            **{name: value for name, value in asked.items() if value})
        return made


def allocation() -> bool:
    """Whether this process stands in an allocation, as its shell or batch script."""
    return "SLURM_JOB_ID" in os.environ
