"""The plan command: what it reads, what it shows, and what it refuses before anything is traced."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from infra.plan import main
from tests.infra.plan_configs import LLAMA, written

LAPTOP = "interleaved_pipelining:laptop"


def run(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_page_says_all_and_fits_into_100_columns(capsys):
    code, out, err = run(capsys, LAPTOP, "--cluster", "selene", "--tokens", "1e9")
    assert code == 0 and not err
    for words in (
        "parameters and optimizer",
        "exact",
        "predicted",
        "assumed",
        "fragmentation, apart",
        "free",
        "needed",
        "matrix products",
        "MFU, causal attention half",
        "HFU, causal attention whole",
        "peak: dense fp32",
        "tokens/s",
        "for 1B tokens",
        "kernel set   paper",
        "Extrapolated",
        "checked:",
        "NVIDIA A100",
    ):
        assert words in out, words
    assert max(map(len, out.splitlines())) <= 100


def test_json_holds_the_same_and_adds_up(capsys):
    code, out, err = run(capsys, LAPTOP, "--cluster", "selene", "--json")
    found = json.loads(out)
    assert code == 0 and not err
    assert sum(found["time"].values()) == pytest.approx(found["seconds"])
    memory = found["memory"]
    assert sum(term["bytes"] for term in memory["terms"]) == pytest.approx(memory["total"])
    assert max(memory["needed"]) == pytest.approx(memory["total"] + memory["fragmentation"])
    h, l, v, s = 64, 8, 1024, 64
    assert found["parameters"] == l * (12 * h * h + 13 * h) + (v + s + 2) * h
    assert found["budget"]["tokens"] == 20 * found["parameters"]
    assert found["tokens_per_second"] * found["seconds"] == pytest.approx(8 * 64)


def test_single_fields_and_the_number_of_ranks_are_taken(capsys):
    code, out, _ = run(
        capsys,
        LAPTOP,
        "--cluster",
        "selene",
        "--gpus",
        "4",
        "--grid.tp",
        "2",
        "--model.hidden",
        "128",
        "--json",
    )
    recipe = json.loads(out)["recipe"]
    assert code == 0 and recipe["model"]["hidden"] == 128
    assert (recipe["grid"]["tp"], recipe["grid"]["dp"], recipe["grid"]["pp"]) == (2, 2, 1)


REFUSED = {
    "paper": (["nothing:gpt", "--cluster", "selene"], ["interleaved_pipelining, ", "config.json"]),
    "paper alone": (["interleaved_pipelining", "--cluster", "selene"], ["interleaved_pipelining:gpt_1t"]),
    "recipe": (["interleaved_pipelining:gpt_9t", "--cluster", "selene"], ["gpt_1t"]),
    "hardware": ([LAPTOP, "--cluster", "seleni"], ["selene", "dgx_h100", "python -m infra.measure"]),
    "no multiple": (
        ["interleaved_pipelining:gpt_1t", "--cluster", "selene", "--gpus", "1000"],
        ["512 or 1024"],
    ),
    "two numbers": (
        ["interleaved_pipelining:gpt_1t", "--cluster", "selene", "--gpus", "3072", "--grid.dp", "2"],
        ["one of the two"],
    ),
    "small cluster": (["interleaved_pipelining:gpt_1t", "--cluster", "dgx2_v100"], ["at most 1536"]),
    "heads": (
        ["interleaved_pipelining:gpt_1t", "--cluster", "selene", "--grid.tp", "7"],
        ["heads=160", "tp=7", "use tp in"],
    ),
    "stages": (
        [
            "interleaved_pipelining:gpt_1t",
            "--cluster",
            "selene",
            "--execution.schedule",
            "interleaved",
            "--execution.chunks",
            "3",
        ],
        ["128 layers", "at most 128 stages"],
    ),
    "precision": (
        ["interleaved_pipelining:gpt_1_7b", "--cluster", "dgx_h100", "--execution.precision", "bf17"],
        ["bf16"],
    ),
    "precision of the hardware": (
        [LAPTOP, "--cluster", "dgx2_v100", "--execution.precision", "bf16"],
        ["V100", "fp16"],
    ),
    "timeline": ([LAPTOP, "--cluster", "selene", "--timeline", "x.txt"], [".json", ".png"]),
    "drawing": (
        [LAPTOP, "--cluster", "selene", "--search", "--draw", "nowhere/x.png"],
        ["no folder nowhere"],
    ),
    "a trace by another name": ([LAPTOP, "--cluster", "selene", "--timeline", "t.txt"], [".json", ".png"]),
    "a trace in no folder": ([LAPTOP, "--cluster", "selene", "--timeline", "nowhere/t.json"], ["no folder nowhere"]),
    "a trace that exists": ([LAPTOP, "--cluster", "selene", "--timeline", "pyproject.toml/t.json"], ["is a file and"]),
    "drawing one": ([LAPTOP, "--cluster", "selene", "--draw", "x.png"], ["--search"]),
    "tokens": ([LAPTOP, "--cluster", "selene", "--tokens", "-1"], ["--tokens -1"]),
    "ranks": ([LAPTOP, "--cluster", "selene", "--gpus", "0"], ["--gpus 0", "at least 1"]),
    "file": (["none.json", "--cluster", "selene"], ["no file none.json"]),
}


@pytest.mark.parametrize("words, said", REFUSED.values(), ids=REFUSED)
def test_bad_input_is_one_line_before_anything_is_traced(capsys, monkeypatch, words, said):
    monkeypatch.setattr("common.predict.pieces.trace", None)
    code, out, err = run(capsys, *words)
    assert code == 2 and not out and err.count("\n") == 1
    assert all(word in err for word in said), err


@pytest.mark.parametrize(
    "values, said",
    [
        ({"architectures": ["BertModel"]}, ["BertModel", "LlamaForCausalLM"]),
        ({"hidden_size": 64}, ["architectures", "model_type"]),
        (
            {"architectures": ["LlamaForCausalLM"], "hidden_size": 64},
            ["intermediate_size", "num_hidden_layers", "vocab_size"],
        ),
        (LLAMA | {"hidden_act": "relu"}, ["hidden_act='relu'", "silu"]),
    ],
)
def test_unknown_models_name_their_fields(capsys, tmp_path, values, said):
    code, out, err = run(capsys, written(tmp_path, values), "--cluster", "selene", "--gpus", "8")
    assert code == 2 and not out and err.count("\n") == 1
    assert all(word in err for word in said), err


LARGE = (
    "--model.hidden",
    "16384",
    "--model.heads",
    "1",
    "--model.vocab",
    "1024",
    "--training.micro-batch",
    "1",
)


def test_what_does_not_fit_says_what_breaks_and_what_would_fit(capsys):
    """GPipe keeps every micro-batch."""
    code, out, err = run(
        capsys,
        LAPTOP,
        "--cluster",
        "selene",
        "--grid.pp",
        "8",
        *LARGE,
        "--execution.schedule",
        "gpipe",
        "--training.batch",
        "64",
        "--model.sequence",
        "2048",
    )
    assert code == 2 and "does not fit" in out and "too much" in out and err.count("\n") == 1
    assert "and activations pass the limit; on the same ranks fits tp 1, pp 8" in err


def test_what_fits_nowhere_has_a_closest_layout_and_a_larger_number_of_ranks(capsys):
    code, out, err = run(capsys, LAPTOP, "--cluster", "selene", "--gpus", "2", "--search", *LARGE)
    assert code == 2 and not out and err.count("\n") == 1
    assert "the closest, tp 1, pp 2" in err and "parameters and optimizer pass the limit" in err
    assert "on 8 ranks fits tp 1, pp 8" in err


def test_search_shows_the_best_and_why_others_fell_out(capsys, tmp_path):
    words = (
        LAPTOP,
        "--cluster",
        "selene",
        "--gpus",
        "2",
        "--search",
        "--model.heads",
        "1",
        "--model.hidden",
        "4096",
    )
    code, out, err = run(
        capsys, *words, "--draw", str(tmp_path / "s.png"), "--timeline", str(tmp_path / "t.json")
    )
    assert code == 0 and not err
    for part in (
        "layout found",
        "Search: ",
        "layouts can be",
        "Why others fell out",
        "heads=1 does not divide by tp=2",
        "schedule",
    ):
        assert part in out, part
    assert max(map(len, out.splitlines())) <= 100
    assert imread(tmp_path / "s.png").shape[1] > 800
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    code, out, _ = run(capsys, *words, "--json")
    best = json.loads(out)["search"]["best"]
    assert 0 < len(best) <= 10 and [b["seconds"] for b in best] == sorted(b["seconds"] for b in best)
    assert best[0]["seconds"] == pytest.approx(json.loads(out)["seconds"])


def test_transformers_is_never_imported():
    program = (
        "import sys\nfrom infra.plan import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n"
        "    assert not end.code\nassert 'transformers' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, LAPTOP, "--cluster", "selene"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
