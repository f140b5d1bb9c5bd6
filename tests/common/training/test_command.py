"""What the train and evaluate commands say to wrong input: one line, before any rank starts, nothing left behind."""

import pytest

from common.training.command import main, recipes
from infra import launch
from papers.sequence_parallelism import recipes as paper


@pytest.fixture(autouse=True)
def no_rank_starts(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(launch, "run_local", refuse)


@pytest.mark.parametrize(("words", "said"), [
    (["lapptop"], "recipe 'lapptop' is unknown: use one of"),
    (["laptop", "--model.heads", "5"], "heads=5 does not divide hidden=192"),
    (["laptop", "--model.pattern", "[*?]*2"], "unknown letter '?'"),
    (["laptop", "--grid.tp", "4"], "heads=6 does not divide by tp=4"),
    (["laptop", "--grid.tp", "0"], "tp=0"),
    (["laptop", "--grid.tp", "2", "--launch", "local:4"], "launch has 4 ranks, the grid needs"),
    (["laptop", "--grid.dp", "3"], "global_batch=8 is not divisible by dp x micro_batch"),
    (["laptop", "--training.batch", "12"], "global_batch=12 is not divisible"),
    (["laptop", "--execution.recompute", "selective"], "frees nothing"),
    (["laptop", "--execution.recompute", "most"], "unknown name 'most'"),
    (["laptop", "--execution.kernels", "cuda"], "kernels='cuda'"),
    (["laptop", "--execution.precision", "fp16"], "precision 'fp16' is not available"),
    (["laptop", "--execution.precision", "fp12"], "precision='fp12'"),
    (["laptop", "--execution.sequence-parallel"], "sequence_parallel needs tp of at least 2"),
    (["laptop", "--training.steps", "50"], "rate.total=100 differs from training.steps=50"),
    (["laptop", "--data.vocab", "8192"], "model.vocab=4096 is smaller than data.vocab=8192"),
    (["laptop", "--data.source", "/nonexistent/text"], "/nonexistent/text"),
    (["laptop", "--launch", "slurm:4"], "launch 'slurm:4' is unknown"),
    (["laptop", "--launch", "local:x"], "has no number of ranks"),
    (["laptop", "--grid.dp", "64", "--training.batch", "64", "--training.micro-batch", "1"], "64"),
    (["laptop", "--id", "../escape"], "is not a plain name"),
    (["gpt_1t"], "512 ranks"),
    (["--resume"], "--resume needs the run's directory"),
    (["--resume", "nowhere"], "'nowhere' is not a run's directory"),
    (["--config", "nowhere.json"], "No such file"),
])
def test_one_line_says_what_to_change(words, said, tmp_path, monkeypatch, capsys):
    if "--id" in words:
        from data import prepare

        monkeypatch.setattr(prepare, "prepare", lambda *_, **__: None)
        monkeypatch.setattr("common.training.command.prepare", lambda *_, **__: None)
    runs = tmp_path / "runs"
    more = ["--runs", str(runs)] if words[0] == "laptop" else []
    with pytest.raises(SystemExit) as ended:
        main(paper, words + more)
    message = str(ended.value)
    if message == "2":  # a field's own check, which the command line's parser reports with the option's name
        assert said in " ".join(capsys.readouterr().err.split())
    else:
        assert said in message and message.count("\n") == 0
        assert message.startswith("python -m papers.sequence_parallelism.train")
    assert not runs.exists()


def test_help_names_the_recipes(capsys):
    main(paper, ["--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in recipes(paper))


def test_every_recipe_has_a_layout_that_its_model_takes():
    for recipe in recipes(paper).values():
        recipe.check()
