"""A real cluster of two nodes for the tests of this folder; without SLURM's packages they are skipped, and say so."""

import os
from pathlib import Path

import pytest

from infra.slurm.local_cluster import INSTALL, LocalCluster, missing


@pytest.fixture(scope="session")
def cluster():
    if lacking := missing():
        pytest.skip(f"SLURM is not installed here ({', '.join(lacking)} not found): `{INSTALL}` installs it")
    made = LocalCluster(Path(f"/tmp/slurm-test-{os.getpid()}"))
    made.start(2)
    yield made
    made.stop()
