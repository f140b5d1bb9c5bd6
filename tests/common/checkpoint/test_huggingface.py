"""Checkpoints of transformers, in and out, against transformers itself: logits, loss, gradients, bits."""

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from common.checkpoint.huggingface import check_hf, config_from_hf, config_to_hf, export_hf, load_hf
from common.checkpoint.huggingface.tensors import Tensors
from common.grid import Grid
from common.layers.context import Context
from common.layout import SERIAL, Layout
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients, gather_whole
from common.parameters import named
from infra.rank_context import RankContext
from tests.distributed import ranks
from tests.oracles import transformers_models as oracle
from tests.oracles.parity import assert_close

NAMES = sorted(oracle.MODELS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """name, dtype -> (folder, model of transformers, logits); each made once."""
    @cache
    def make(name: str, dtype: torch.dtype = torch.float32):
        model = oracle.build(name, dtype)
        folder = oracle.save(model, tmp_path_factory.mktemp(name) / "checkpoint")
        with torch.no_grad():
            return folder, model, model(oracle.tokens()[:, :-1]).logits
    return make


def record(tokens: Tensor) -> Record:
    B, S = tokens.shape[0], tokens.shape[1] - 1
    return Record(
        tokens[:, :-1],
        tokens[:, 1:],
        torch.ones(B, S, dtype=torch.bool),
        torch.arange(S).expand(B, S),
        samples=tuple(range(B)),
    )


def load(
    folder: Path, layout: Layout = SERIAL, dtype: torch.dtype = torch.float32, **context
) -> LanguageModel:
    config = config_from_hf(json.loads((folder / "config.json").read_text()))
    model = LanguageModel(config, Context(layout, dtype=dtype, **context)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)  # what is not loaded shows
    load_hf(folder, model, layout)
    return model


def same_bits(a: Path, b: Path) -> bool:
    left, right = tensors_of(a), tensors_of(b)
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and torch.equal(left[n], right[n]) for n in left)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}


def gradients_as_checkpoint(model: LanguageModel, folder: Path, layout: Layout = SERIAL) -> None:
    """Writes the gradients under the names and in the layout of transformers."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad if p.grad is not None else p.main_grad)
    export_hf(model, layout, folder)


@pytest.mark.parametrize("kernels", ["reference", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(checkpoint, name, kernels):
    folder, _, expected = checkpoint(name)
    with torch.no_grad():
        logits = load(folder, kernels=kernels).logits(record(oracle.tokens())).transpose(0, 1)
    assert_close({"logits": logits}, {"logits": expected}, 1e-6)
    assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["gpt2", "gpt2_untied"])
def test_logits_in_fp64(checkpoint, name):
    """GPT-2 alone: the others' norms and softmax go down to fp32 in transformers."""
    folder, _, expected = checkpoint(name, torch.float64)
    with torch.no_grad():
        logits = load(folder, dtype=torch.float64).logits(record(oracle.tokens())).transpose(0, 1)
    assert logits.dtype == torch.float64
    assert_close({"logits": logits}, {"logits": expected}, 1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_transformers(checkpoint, name, tmp_path):
    folder, theirs, _ = checkpoint(name)
    tokens = oracle.tokens()
    loss, expected = oracle.loss_and_gradients(theirs, tokens)
    model = load(folder)
    _, terms = model(record(tokens), {})
    mean = terms["language"].sum / terms["language"].count
    mean.backward()
    assert abs(mean - loss) < 1e-6 * loss
    gradients_as_checkpoint(model, tmp_path / "gradients")
    assert_close(tensors_of(tmp_path / "gradients"), expected, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_export_returns_the_same_bits_and_transformers_reads_them(checkpoint, name, tmp_path):
    folder, theirs, expected = checkpoint(name)
    export_hf(load(folder), SERIAL, tmp_path / "out", architecture=type(theirs).__name__)
    assert same_bits(folder, tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(oracle.load(tmp_path / "out")(oracle.tokens()[:, :-1]).logits, expected)


@pytest.mark.parametrize("name", NAMES)
def test_config_survives_the_round_trip(checkpoint, name):
    folder, theirs, _ = checkpoint(name)
    config = config_from_hf(json.loads((folder / "config.json").read_text()))
    again = config_from_hf(config_to_hf(config, type(theirs).__name__))
    resolved = {"kv_heads": config.groups, "head_dim": config.dim, "ffn": config.inner}
    assert replace(again, **resolved) == replace(config, **resolved)


def test_bf16_checkpoint_keeps_its_bits_through_an_fp32_model(checkpoint, tmp_path):
    folder, _, _ = checkpoint("qwen2", torch.bfloat16)
    export_hf(load(folder), SERIAL, tmp_path / "out", dtype=torch.bfloat16, architecture="Qwen2ForCausalLM")
    assert same_bits(folder, tmp_path / "out")
    assert check_hf(tmp_path / "out").qkv_bias


def _load_and_compute(context: RankContext, folder: Path, out: Path, sequence_parallel: bool):
    """Logits of this rank with their padding columns, elements read from files, elements held, sum over
    padding rows."""
    layout = Layout(Grid(tp=context.size), context.rank)
    read = []
    original = Tensors.read

    def counting(self, name, index):
        part = original(self, name, index)
        read.append(part.numel())
        return part

    Tensors.read = counting
    try:
        model = load(folder, layout, sequence_parallel=sequence_parallel)
    finally:
        Tensors.read = original
    held = sum(
        p.numel() // max(1, f.local_size(layout)) * (f.local_range(layout)[1] - f.local_range(layout)[0])
        for _, p, f in named(model)
    )
    padding = [p[f.local_range(layout)[1] - f.local_range(layout)[0]:].abs().sum().item()
               for n, p, f in named(model) if n in ("embedding.tokens", "output.weight")]
    export_hf(model, layout, out)
    with torch.no_grad():
        logits = model.logits(record(oracle.tokens()))
    gradients = Gradients([model], layout)
    _, terms = model(record(oracle.tokens()), {})
    (terms["language"].sum / terms["language"].count).backward()
    gradients.reduce()
    gradients_as_checkpoint(model, out.with_name("gradients"), layout)
    return logits, sum(read), held, sum(padding)


@pytest.mark.parametrize("name, size, sequence_parallel", [
    ("gpt2", 2, False), ("gpt2", 4, True), ("llama", 2, True), ("llama", 4, False), ("llama_bias", 4, True),
    ("qwen2", 4, True), ("qwen2", 4, False)])
def test_tensor_ranks_read_their_own_part_and_give_it_back(
    checkpoint, tmp_path, name, size, sequence_parallel
):
    """Vocabulary 101 on 2 and 4 ranks; one or two key-value heads on 4."""
    folder, theirs, expected = checkpoint(name)
    results = ranks(size, _load_and_compute, folder, tmp_path / "out", sequence_parallel)
    logits = torch.cat([r[0] for r in results], dim=-1)[..., :oracle.VOCAB].transpose(0, 1)
    assert_close({"logits": logits}, {"logits": expected}, 1e-6)
    for _, read, held, padding in results:
        assert read == held
        assert padding == 0
    assert same_bits(folder, tmp_path / "out")
    _, gradients = oracle.loss_and_gradients(theirs, oracle.tokens())
    assert_close(tensors_of(tmp_path / "gradients"), gradients, 1e-5)


def _stages(context: RankContext, folder: Path, out: Path, grid: Grid):
    layout = Layout(grid, context.rank)
    config = check_hf(folder)
    stage, stages = layout.index("pp"), layout.size("pp")
    cut = [config.depth * i // stages for i in range(stages + 1)]
    model = LanguageModel(config, Context(layout), first=cut[stage], last=cut[stage + 1])
    load_hf(folder, model, layout)
    tied = {n: gather_whole(p.detach(), f, layout) for n, p, f in named(model)
            if n in ("embedding.tokens", "output.weight")}
    export_hf(model, layout, out, shard_bytes=8_000)
    return tied


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_stages_write_one_checkpoint(checkpoint, tmp_path, name):
    """A tied matrix is loaded at both ends and written once; data-parallel ranks write nothing."""
    folder, theirs, _ = checkpoint(name)
    results = ranks(4, _stages, folder, tmp_path / "out", Grid(tp=2, pp=2))
    assert same_bits(folder, tmp_path / "out")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = {p.name for p in (tmp_path / "out").glob("*.safetensors")}
    assert set(index["weight_map"].values()) == files and len(files) > 2
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors_of(tmp_path / "out").values())
    theirs = dict(theirs.named_parameters())
    head = theirs.get("lm_head.weight", theirs.get("transformer.wte.weight"))
    last = "embedding.tokens" if name == "gpt2" else "output.weight"  # a copy goes by the name of its original
    assert set(results[0]) == {"embedding.tokens"} and set(results[2]) == {last}
    assert all(torch.equal(r[last], head) for r in results[2:])
    with torch.no_grad():
        again = oracle.load(tmp_path / "out")(oracle.tokens()[:, :-1]).logits
    assert torch.equal(again, checkpoint(name)[2])


def test_data_ranks_write_once(checkpoint, tmp_path):
    folder, _, _ = checkpoint("llama")
    ranks(4, _stages, folder, tmp_path / "out", Grid(tp=2, dp=2))
    assert same_bits(folder, tmp_path / "out")


def test_loading_again_changes_nothing_that_training_needs(checkpoint):
    """Weights arrive in place: an optimizer, a gradient buffer or a tied matrix that holds them goes on
    doing so."""
    folder, _, _ = checkpoint("gpt2")
    model = load(folder)
    before = {n: p.data_ptr() for n, p in model.named_parameters()}
    copied = copy.deepcopy(model.state_dict())
    load_hf(folder, model, SERIAL)
    assert before == {n: p.data_ptr() for n, p in model.named_parameters()}
    assert all(torch.equal(v, copied[n]) for n, v in model.state_dict().items())
    assert model.output.weight is model.embedding.tokens
