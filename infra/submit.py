"""`python -m infra.submit [--cluster NAME] [--nodes N ...] -- MODULE ARGUMENT ...`: a command as a SLURM job.

    python -m infra.submit --cluster local -- papers.interleaved_pipelining.train laptop_ptd_p
    python -m infra.submit --cluster selene --account mine --print-only -- papers.interleaved_pipelining.train gpt_1t

In an allocation (salloc, sbatch) the command runs there at once, through srun.
"""

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from common.training.command import guarded
from infra.slurm.send import send
from infra.slurm.settings import Settings, load

PROGRAM = "python -m infra.submit"


@dataclass(frozen=True)
class Submit:
    """settings: of the cluster's file, each to be replaced here."""

    settings: tyro.conf.OmitArgPrefixes[Settings]
    cluster: str = ""
    """A file of infra/clusters/ by its name, or a .toml of your own; empty for SLURM's own defaults."""
    print_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the script, and the plan's memory and time; nothing is submitted."""
    anyway: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Submit what does not fit into memory by its plan."""


def main(arguments: list[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    guarded(PROGRAM, lambda: _main(words))


def _main(words: list[str]) -> None:
    own, command = (words[:words.index("--")], words[words.index("--") + 1:]) if "--" in words else (words, [])
    asked = tyro.cli(Submit, prog=PROGRAM, args=own, default=Submit(_settings(own)))
    if not command:
        raise ValueError(f"no command: {PROGRAM} [--cluster NAME ...] -- MODULE ARGUMENT ..., such as "
                         "papers.interleaved_pipelining.train laptop_ptd_p")
    send(asked.settings, command[0], command[1:], print_only=asked.print_only, anyway=asked.anyway)


def _settings(words: list[str]) -> Settings:
    """Of the cluster that the words name: the defaults of all other options."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "--cluster" or word.startswith("--cluster="):
            return load(word.partition("=")[2] or after)
    return Settings()


if __name__ == "__main__":
    main()
