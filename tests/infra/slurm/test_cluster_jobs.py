"""Jobs on a real SLURM of two nodes: training, failure, allocation, names that a shell would act on."""

import json
import os
import subprocess
import sys
import time

import pytest
import safetensors.numpy

from common.training.metrics import read_metrics

RECIPE = ("papers.interleaved_pipelining.train", "laptop_ptd_p", "--grid.tp", "1", "--grid.pp", "2", "--grid.dp", "1",
          "--training.steps", "4", "--rate.total", "4", "--rate.warmup", "1")


def command(cluster, *words, prefix=(), **variables):
    environment = {**cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    done = subprocess.run([*prefix, sys.executable, "-m", *words], capture_output=True, text=True, timeout=100,
                          env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ended(cluster, number, seconds=60):
    """The job's last state and its exit status, as the controller tells them."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        said = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True, env=cluster.environment,
                              check=True).stdout
        facts = dict(word.split("=", 1) for word in said.split() if "=" in word)
        if facts["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            return facts["JobState"], facts["ExitCode"]
        time.sleep(0.1)
    raise AssertionError(f"job {number} has not ended: {said}")


def losses(run):
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl")]


@pytest.fixture(scope="module")
def local_losses(tmp_path_factory):
    runs = tmp_path_factory.mktemp("local")
    subprocess.run([sys.executable, "-m", *RECIPE, "--launch", "local:2", "--runs", str(runs), "--id", "here"], check=True,
                   capture_output=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return losses(runs / "here")


def test_two_nodes_train_to_the_losses_of_two_local_ranks_in_a_folder_with_a_hostile_name(cluster, tmp_path, local_losses):
    runs = tmp_path / "a 'b\" $(touch pwned); `touch pwned` #& c"
    began = time.monotonic()
    command(cluster, "infra.submit", "--cluster", "local", "--", *RECIPE, "--runs", str(runs), "--id", "there")
    folder = runs / "jobs" / "there"
    while not (runs / "there").exists():
        assert time.monotonic() - began < 30
        time.sleep(0.1)
    assert ended(cluster, (folder / "id").read_text()) == ("COMPLETED", "0:0")
    assert losses(runs / "there") == local_losses
    assert {path.name for path in (runs / "there" / "logs").iterdir()} == {"rank0.log", "rank1.log"}
    assert not list(tmp_path.rglob("pwned"))
    [row] = json.loads(command(cluster, "infra.status", "--runs", str(runs), "--json"))
    assert (row["name"], row["step"], row["steps"], row["loss"]) == ("there", 4, 4, local_losses[3])


def test_a_failed_rank_ends_the_job_with_its_own_error(cluster, tmp_path):
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-m", "infra.submit", "--cluster", "local", "--nodes", "2", "--",
                           "tests.infra.slurm.rank_fails", "slurm"], capture_output=True, text=True, timeout=60, cwd=tmp_path,
                          env={**cluster.environment, "PYTHONPATH": os.getcwd()})
    assert said.returncode == 0, said.stderr
    [folder] = (tmp_path / "runs" / "jobs").iterdir()
    state, status = ended(cluster, (folder / "id").read_text())
    assert state == "FAILED" and status != "0:0" and time.monotonic() - began < 30
    assert "rank 1 of 2 failed: ValueError: rank 1 does not like its data" in next(folder.glob("*_1_log.out")).read_text()
    assert "failed" not in next(folder.glob("*_0_log.out")).read_text()


def test_a_pre_empted_job_is_requeued_and_its_run_cannot_be_told_from_one_that_never_stopped(cluster, tmp_path):
    recipe = [*RECIPE, "--training.steps", "60", "--rate.total", "60", "--runs", str(tmp_path)]
    subprocess.run([sys.executable, "-m", *recipe, "--launch", "local:2", "--id", "whole"], check=True, capture_output=True,
                   timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
    command(cluster, "infra.submit", "--cluster", "local", "--", *recipe, "--id", "cut")
    metrics, until = tmp_path / "cut" / "metrics.jsonl", time.monotonic() + 30
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 10:
        assert time.monotonic() < until
        time.sleep(0.05)
    subprocess.run(["srun", "--partition=urgent", "--exclusive", "--nodes=2", "true"], check=True, capture_output=True,
                   timeout=60, env=cluster.environment)
    assert ended(cluster, (tmp_path / "jobs" / "cut" / "id").read_text()) == ("COMPLETED", "0:0")
    resumes = json.loads((tmp_path / "cut" / "env.json").read_text())["resumes"]
    assert len(resumes) == 1 and 10 <= resumes[0]["step"] < 60
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    final = [safetensors.numpy.load_file(file) for run in ("cut", "whole")
             for file in sorted((tmp_path / run / "checkpoints" / "step-00000060").glob("*.safetensors"))]
    ours, theirs = final[:len(final) // 2], final[len(final) // 2:]
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_in_an_allocation_the_command_runs_there(cluster, tmp_path, local_losses):
    command(cluster, *RECIPE, "--launch", "slurm", "--runs", str(tmp_path), "--id", "held",
            prefix=("salloc", "--nodes=2", "--ntasks-per-node=1"))
    assert losses(tmp_path / "held") == local_losses


def test_the_end_of_a_job_is_its_time_limit_and_what_is_left_shrinks(cluster, tmp_path):
    code = "from infra.slurm.job import current_job; import time; j = current_job(); print(j.id, j.end - time.time())"
    done = subprocess.run(["srun", "--time=2", sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**cluster.environment, "PYTHONPATH": os.getcwd()})
    assert done.returncode == 0, done.stderr
    assert 100 < float(done.stdout.split()[1]) <= 121


@pytest.mark.parametrize("nodes", ["n1", "n[1-2]", "node[01-03,07]", "node[007,009-011],other", "a[1-2]b[3-4]", "x,y", "n-1,z[2]"])
def test_the_first_host_of_a_node_list_is_slurms_own(cluster, nodes):
    from infra.slurm.job import first_host

    said = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True,
                          env=cluster.environment)
    assert first_host(nodes) == said.stdout.split()[0]
