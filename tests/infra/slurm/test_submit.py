"""What a job is asked for: printed without SLURM, refused before anything is written, and quoted."""

import json
import shlex

import pytest

from infra import submit
from infra.slurm import task
from infra.slurm.rank import own_command
from infra.slurm.settings import CLUSTERS, Settings, load
from infra.snapshot import snapshot

TWO = ("papers.interleaved_pipelining.train", "laptop_ptd_p", "--grid.tp", "1", "--grid.pp", "2", "--grid.dp", "1")


def refused(capsys, *words):
    with pytest.raises(SystemExit) as left:
        submit.main(list(words))
    assert left.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_print_only_shows_script_and_plan_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    submit.main(["--cluster", "local", "--print-only", "--account", "it's; mine", "--", *TWO, "--runs", str(tmp_path / "r")])
    shown = capsys.readouterr().out
    flags = dict(shlex.split(line)[1].split("=", 1) for line in shown.splitlines() if line.startswith("#SBATCH") and "=" in line)
    assert flags["--account"] == "it's; mine"
    assert (flags["--nodes"], flags["--ntasks-per-node"], flags["--signal"]) == ("2", "1", "USR1@120")
    assert "#SBATCH --requeue" in shown and "srun" in shown and "--kill-on-bad-exit=1" in shown
    assert "plan on 2 x cpu_2core" in shown and "GB on the fullest rank" in shown
    assert not list(tmp_path.iterdir())


def test_a_job_that_cannot_fit_is_refused_with_its_figures(capsys, tmp_path):
    line = refused(capsys, "--cluster", "selene", "--", "papers.interleaved_pipelining.train", "gpt_1_7b", "--training.micro-batch",
                   "16", "--execution.recompute", "none", "--runs", str(tmp_path / "r"))
    assert "does not fit on selene" in line and "GB" in line and "--anyway" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words, message", [
    (["--cluster", "moon", "--", *TWO], "cluster 'moon' is unknown: use one of local, selene"),
    (["--nodes", "3", "--tasks-per-node", "1", "--", *TWO], "3 nodes x 1 tasks are 3 ranks, and the command has 2"),
    (["--time", "soon", "--", *TWO], "time='soon': use H:MM:SS"),
    (["--partition", "a\nb", "--", *TWO], "partition="),
    (["--sbatch", "output", "x", "--", *TWO], "'output' is set already"),
    (["--sbatch", "a b", "x", "--", *TWO], "sbatch flag 'a b'"),
    (["--gpus-per-node", "1", "--tasks-per-node", "2", "--", *TWO], "a rank has a GPU of its own"),
    (["--nodes", "1"], "no command"),
])
def test_what_cannot_be_asked_for_is_refused_in_one_line(capsys, words, message):
    assert message in refused(capsys, *words)


def test_an_unknown_setting_of_a_cluster_file_is_refused_with_those_there_are(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('partitoin = "gpu"\n')
    with pytest.raises(ValueError, match=r"mine.toml.*partitoin is not a field.*partition"):
        load(str(path))


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_files_of_clusters_can_be_read(path):
    assert load(path.stem) != Settings()


@pytest.mark.parametrize("time, seconds", [("90", 5400), ("1:30", 90), ("4:00:00", 14400), ("2-12", 216000), ("1-0:0:1", 86401)])
def test_time_limits_are_slurms(time, seconds):
    assert Settings(time=time).seconds == seconds


def test_the_command_that_sends_itself_names_no_cluster_in_the_job():
    words = ["python", "-u", "-m", "papers.x.train", "laptop", "--launch", "slurm:local", "--id", "a b"]
    assert own_command(words) == ("papers.x.train", ["laptop", "--id", "a b", "--launch", "slurm"])
    with pytest.raises(ValueError, match="python -m MODULE"):
        own_command(["python", "train.py", "--launch", "slurm"])


def test_a_job_that_starts_again_goes_on_with_its_run(tmp_path):
    run = tmp_path / "one"
    job = {"run": str(run), "resumes": False, "arguments": ["laptop", "--id", "one"]}
    assert task._again(job, 0) == job["arguments"]
    assert task._again(job, 1)[-2:] == ["--id", "one-start2"], "no checkpoint: begun anew beside it"
    (run / "checkpoints" / "step-4.partial").mkdir(parents=True)
    (run / "checkpoints" / "step-4.partial" / "manifest.json").touch()
    assert task._again(job, 1)[-2:] == ["--id", "one-start2"], "a checkpoint that is not whole is none"
    (run / "checkpoints" / "step-2").mkdir()
    (run / "checkpoints" / "step-2" / "manifest.json").touch()
    assert task._again(job, 2) == ["--resume", str(run), "--launch", "slurm"]


def test_a_snapshot_holds_the_code_as_it_stands_and_knows_its_commit(tmp_path):
    from common.claims.origin import CODE, ROOT, commit

    snapshot(tmp_path / "copy")
    for file in ("infra/launch.py", "papers/interleaved_pipelining/recipes.py", "infra/clusters/local.toml"):
        assert (tmp_path / "copy" / file).read_bytes() == (ROOT / file).read_bytes()
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {*CODE, "tests", "runs", ".git"}
    assert commit(tmp_path / "copy").removesuffix("-dirty") == commit(ROOT).removesuffix("-dirty")
    assert json.dumps(str((tmp_path / "copy" / "runs").resolve())) == json.dumps(str((ROOT / "runs").resolve()))
