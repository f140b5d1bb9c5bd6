"""What the train and evaluate commands say to wrong input: one line, before any rank starts, nothing left behind."""

from unittest import mock

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
    (["laptop", "--launch", "slurm:4"], "cluster '4' is unknown"),
    (["laptop", "--launch", "local:x"], "has no number of ranks"),
    (["laptop", "--grid.dp", "64", "--training.batch", "64", "--training.micro-batch", "1"], "64"),
    (["laptop", "--id", "../escape"], "is not a plain name"),
    (["gpt_1t"], "512 ranks"),
    (["laptop", "--model.ffn", "0"], "ffn=0: use a whole number of at least 1"),
    (["laptop", "--model.ffn", "-8"], "ffn=-8"),
    (["laptop", "--model.head-dim", "0"], "head_dim=0"),
    (["laptop", "--model.head-dim", "-2"], "head_dim=-2"),
    (["laptop", "--model.kv-heads", "0"], "kv_heads=0"),
    (["laptop", "--model.heads", "99999999999", "--model.head-dim", "2"], "heads=99999999999"),
    (["laptop", "--model.init-std", "nan"], "init_std=nan: use a finite number"),
    (["laptop", "--model.init-std", "-1"], "init_std=-1"),
    (["laptop", "--model.norm-eps", "-1"], "norm_eps=-1"),
    (["laptop", "--model.rotary-base", "0"], "rotary_base=0"),
    (["laptop", "--optimizer.clip", "nan"], "clip=nan"),
    (["laptop", "--optimizer.eps", "nan"], "eps=nan"),
    (["laptop", "--optimizer.weight-decay", "inf"], "weight_decay=inf"),
    (["laptop", "--rate.peak", "inf"], "peak=inf"),
    (["laptop", "--training.seed", "99999999999999999999"], "seed=99999999999999999999: use a whole number"),
    (["laptop", "--training.evaluate-sequences", "99999999999999999999"], "evaluate_sequences=9"),
    (["laptop", "--model.pattern", "[*-]*1000000000"], "at most 10,000 layers in all"),
    (["laptop", "--model.pattern", "[*-]*6000 [*-]*6000"], "at most 10,000 layers in all"),
    (["laptop", "--model.hidden", "99999999999", "--model.head-dim", "4"], "lower model.hidden=99999999999"),
    (["laptop", "--training.batch", "1000000000000", "--training.micro-batch", "1000000000000"],
     "lower training.batch=1000000000000"),
    (["laptop", "--training.batch", "1000000000", "--training.micro-batch", "1"], "at most 100,000"),
    (["--resume"], "--resume needs the run's directory"),
    (["--resume", "nowhere"], "'nowhere' is not a run's directory"),
    (["--config", "nowhere.json"], "No such file"),
])
def test_one_line_says_what_to_change(words, said, tmp_path, monkeypatch, capsys):
    if "--id" in words:
        monkeypatch.setattr("common.training.command.prepare", mock.MagicMock())
        monkeypatch.setattr("common.training.command.Samples", mock.MagicMock())
    runs = tmp_path / "runs"
    more = ["--runs", str(runs)] if words[0] == "laptop" else []
    with pytest.raises(SystemExit) as ended:
        main(paper, words + more)
    message = capsys.readouterr().err
    assert ended.value.code == 2 and said in " ".join(message.replace("│", "").split())
    if "Value error" not in message:  # a field's own check is reported by the command line's parser, with the option's name
        assert message.strip().startswith("python -m papers.sequence_parallelism.train") and message.strip().count("\n") == 0
    assert not runs.exists()


def test_help_names_the_recipes(capsys):
    main(paper, ["--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in recipes(paper))


def test_every_recipe_has_a_layout_that_its_model_takes():
    for recipe in recipes(paper).values():
        recipe.check()
