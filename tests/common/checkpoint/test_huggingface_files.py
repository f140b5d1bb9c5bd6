"""Checkpoint folders that are wrong, torn or in the way; and files as hubs hold them."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.checkpoint.huggingface import check_hf, export, export_hf, load_hf
from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.parameters import initialise

GPT2 = LanguageModelConfig(hidden=16, heads=2, vocab=37, sequence=8)
LLAMA = LanguageModelConfig(hidden=16, heads=4, kv_heads=2, ffn=24, vocab=37, sequence=8, norm="rmsnorm",
                            activation="swiglu", positions="rotary", tied=False, bias=False)


def build(config: LanguageModelConfig, seed: int = 1) -> LanguageModel:
    model = LanguageModel(config, Context())
    initialise(model, SERIAL, seed)
    return model


@pytest.fixture
def folder(tmp_path) -> Path:
    export_hf(build(LLAMA), SERIAL, tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, edit) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, path)


def set_field(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize("edit, message", [
    (lambda t: t.pop(Q), f"missing: {Q}"),
    (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(16)}),
     r"unexpected: model.layers.0.self_attn.q_proj.bias"),
    (lambda t: t.update({Q: t[Q][:8]}), rf"{Q} has shape \(8, 16\), config.json needs \(16, 16\)"),
    (lambda t: t.update({Q: t[Q].to(torch.int8)}), f"{Q} has dtype I8"),
    (lambda t: t.pop("lm_head.weight"), "missing: lm_head.weight"),
    (lambda t: [t.pop(n) for n in list(t) if "layers.0" in n or "layers.1" in n], "and 10 more"),
])
def test_wrong_tensors_are_named_before_any_weight_changes(folder, edit, message):
    change(folder, edit)
    model = build(LLAMA, seed=2)
    before = {n: p.clone() for n, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message):
        load_hf(folder, model, SERIAL)
    with pytest.raises(ValueError, match=message):
        check_hf(folder)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("wanted, message", [
    (replace(LLAMA, heads=2, kv_heads=1, head_dim=8), "heads=2 .checkpoint 4."),
    (replace(LLAMA, rotary_base=500.0), "rotary_base=500.0 .checkpoint 10000.0."),
    (replace(LLAMA, norm_eps=1e-6), "norm_eps=1e-06"),
    (replace(LLAMA, tied=True), "tied=True"),
    (replace(LLAMA, pattern="[*-]*3"), "layers="),
    (replace(LLAMA, qkv_bias=True), "qkv_bias=True"),
])
def test_weights_of_another_model_are_refused(folder, wanted, message):
    with pytest.raises(ValueError, match=message):
        load_hf(folder, build(wanted), SERIAL)


def test_what_changes_no_weight_may_differ(folder):
    model = build(replace(LLAMA, dropout=0.1, init_std=0.5, sequence=4, pattern="[*-] | [*-]"))
    load_hf(folder, model, SERIAL)
    assert torch.equal(model.output.weight, load_file(folder / "model.safetensors")["lm_head.weight"])


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json holds a list"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]),
            "damaged",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60)), "damaged"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "pytorch_model.bin.*save_pretrained",
        ),
        (
            lambda f: (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "gone.safetensors"}}'
            ),
            "gone.safetensors",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
    ],
)
def test_folders_that_are_no_checkpoint(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message):
        check_hf(folder)


def test_files_as_the_hub_holds_gpt2(tmp_path):
    """No prefix, masks saved as tensors, the tied matrix twice."""
    model = build(GPT2)
    export_hf(model, SERIAL, tmp_path / "model")

    def as_on_the_hub(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(2):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    change(tmp_path / "model", as_on_the_hub)
    again = build(GPT2, seed=2)
    load_hf(tmp_path / "model", again, SERIAL)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))

    change(tmp_path / "model", lambda t: t["lm_head.weight"].add_(1))
    with pytest.raises(ValueError, match="lm_head.weight differs from transformer.wte.weight"):
        check_hf(tmp_path / "model")


def test_old_llama_files_hold_rotary_tables(folder):
    change(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}))
    assert check_hf(folder).positions == "rotary"


def test_nothing_is_overwritten_unasked(tmp_path, folder):
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="exists: name another folder, or ask for overwrite"):
        export_hf(build(LLAMA, 2), SERIAL, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    export_hf(build(LLAMA, 2), SERIAL, folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_overwrite_spares_what_is_no_checkpoint(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("words")
    with pytest.raises(ValueError, match="is no checkpoint"):
        export_hf(build(LLAMA), SERIAL, tmp_path / "thesis", overwrite=True)
    with pytest.raises(ValueError, match="is a file"):
        export_hf(build(LLAMA), SERIAL, tmp_path / "thesis/chapter.txt", overwrite=True)
    (tmp_path / "empty").mkdir()
    export_hf(build(LLAMA), SERIAL, tmp_path / "empty")
    assert check_hf(tmp_path / "empty").hidden == 16


def test_an_export_cut_short_leaves_no_folder(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(export, "save_file", full_disk)
        with pytest.raises(OSError, match="no space"):
            export_hf(build(LLAMA), SERIAL, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    export_hf(build(LLAMA), SERIAL, tmp_path / "model")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_files_are_cut_at_the_size_asked_for(tmp_path):
    export_hf(build(LLAMA), SERIAL, tmp_path / "model", shard_bytes=4000)
    sizes = [sum(t.nbytes for t in load_file(p).values()) for p in (tmp_path / "model").glob("*.safetensors")]
    assert len(sizes) > 3 and max(sizes) <= 4000
    assert check_hf(tmp_path / "model").vocab == 37
