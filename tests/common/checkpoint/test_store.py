"""Checkpoints saved under one layout and loaded under others; torn ones refused; what each file holds, by
safetensors."""

import math
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from common.checkpoint import manifest, storage, store
from common.checkpoint.store import CheckpointError
from common.grid import Grid
from common.layout import Layout
from common.parameters import Facts, Slice
from tests.common.checkpoint import synthetic
from tests.common.checkpoint.synthetic import KINDS, Spec
from tests.distributed import ranks

ONE = Spec(Grid())
CUBE = Spec(Grid(tp=2, pp=2, dp=2), sharded=True)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Everything in a checkpoint's files, by safetensors alone."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as f:
            for name in f.keys():
                assert name not in found, f"{name} is written twice"
                found[name] = f.get_tensor(name)
    return found


def check_elements(folder: Path) -> None:
    """Each tensor's pieces have as many elements as the tensor, and the values of the tensor between them."""
    held, values = Counter(), {}
    for name, x in tensors(folder).items():
        held[name.partition("@")[0]] += x.numel()
        values.setdefault(name.partition("@")[0], []).append(x.reshape(-1))
    names = synthetic.facts(1)
    expected = {f"{kind}.{name}": synthetic.whole(kind, name) for kind in KINDS for name in names}
    assert held == {name: x.numel() for name, x in expected.items()}
    for name, x in expected.items():
        assert torch.equal(torch.cat(values[name]).sort().values, x.reshape(-1).sort().values), name


def test_chain_of_layouts_down_to_one_process(tmp_path):
    """tp2 pp2 dp2 sharded, tp4 dp2, pp4 with two chunks each, one process."""
    chain = [Spec(Grid(tp=4, dp=2)), Spec(Grid(pp=4), chunks=2, sharded=True), ONE]
    source = ranks(8, synthetic.save, CUBE, str(tmp_path / "0"))[0]
    check_elements(Path(source))
    for i, spec in enumerate(chain):
        arguments = spec, source, str(tmp_path / str(i + 1))
        compared = ranks(spec.grid.world, synthetic.load, *arguments) if spec.grid.world > 1 else \
            [synthetic.load(None, *arguments)]
        assert all(n >= 3 for n in compared)
        source = str(tmp_path / str(i + 1) / "step-00000001")
        store.verify(Path(source))
        check_elements(Path(source))
    whole = tensors(Path(source))
    assert whole.keys() == {f"{kind}.{name}" for kind in KINDS for name in synthetic.facts(1)}
    assert all(torch.equal(x, synthetic.whole(*name.split(".", 1))) for name, x in whole.items())


@pytest.mark.parametrize("spec", [
    Spec(Grid(tp=4)), Spec(Grid(tp=2, dp=2, order="dp-tp-pp-cp"), sharded=True),
    Spec(Grid(dp=2, cp=2)), Spec(Grid(pp=2, dp=2, order="pp-dp-tp-cp"), 2, True)])
def test_one_process_to_others_and_back(tmp_path, spec):
    source = synthetic.save(None, ONE, str(tmp_path / "one"))
    ranks(4, synthetic.load, spec, source, str(tmp_path / "four"))
    synthetic.load(None, ONE, str(tmp_path / "four/step-00000001"))
    check_elements(tmp_path / "four/step-00000001")


def test_manifest_names_the_parameters_of_all_stages_and_the_kinds_held(tmp_path):
    folder = Path(ranks(4, synthetic.save, Spec(Grid(pp=4)), str(tmp_path))[3])
    content = store.read_manifest(folder)
    assert content["shapes"] == {name: list(f.shape) for name, f in synthetic.facts(1).items()}
    assert content["kinds"] == sorted(KINDS)
    bare = {"parameters": {"x": Slice(torch.zeros(6))}, "exp_avg": {}}
    folder = store.save(tmp_path, bare, {"x": Facts((6,))}, Layout(), {"step": 2})
    assert store.read_manifest(folder)["kinds"] == ["parameters"]


def many(context, folder: str) -> None:
    layout = Layout(Grid(dp=4), context.rank)
    state = {"parameters": {f"w{i}": Slice(torch.full((1000,), float(i))) for i in range(40)}}
    facts = {name: Facts((1000,)) for name in state["parameters"]}
    store.save(Path(folder), state, facts, layout, {"step": 1})


def test_copies_are_written_once_and_by_all_who_hold_them(tmp_path):
    ranks(4, many, str(tmp_path))
    folder = tmp_path / "step-00000001"
    assert len(tensors(folder)) == 40  # which fails for a tensor written twice
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert len(sizes) == 4 and max(sizes) - min(sizes) < 500


def faulty(context, folder: str, fault: str) -> str:
    spec = Spec(Grid(tp=2, pp=2))
    layout = Layout(spec.grid, context.rank)
    state, facts = synthetic.state(spec, layout), synthetic.names(layout)
    out = state["exp_avg"].get("layers.1.out")
    if out and fault == "gap" and layout.index("tp") == 1:
        state["exp_avg"]["layers.1.out"] = Slice(out.data[:-1])
    if out and fault == "overlap" and layout.index("tp") == 1:
        facts["layers.1.out"] = Facts((6, 8), dim=1)  # all of it, where the other rank holds a half
    with pytest.raises(CheckpointError) as error, pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "save_file", None)  # it is found out before anything is written
        store.save(Path(folder), state, facts, layout, {"step": 2})
    return str(error.value)


@pytest.mark.parametrize("fault, reason", [
    ("gap", "the ranks hold 47 of the 48 elements of exp_avg.layers.1.out"),
    ("overlap", "rank 1 holds indices 0 to 8 of dimension 1 of parameters.layers.1.out, and another rank"),
])
def test_a_gap_or_an_overlap_is_refused_by_name_on_every_rank(tmp_path, fault, reason):
    before = ranks(4, synthetic.save, Spec(Grid(tp=2, pp=2)), str(tmp_path))[0]
    said = ranks(4, faulty, str(tmp_path), fault)
    assert len(set(said)) == 1 and reason in said[0] and "step-00000002 was not written" in said[0]
    assert [str(p) for p in tmp_path.iterdir()] == [before]
    store.verify(Path(before))


def one_key(context, folder: str) -> str:
    """Two boxes of a tensor in one file under one name, of which one would be lost."""
    with pytest.raises(CheckpointError) as error, pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "key", lambda tensor, *box: tensor)
        synthetic.save(context, Spec(Grid(dp=2), sharded=True), folder)
    return str(error.value)


def test_elements_that_were_not_written_fail_the_save(tmp_path):
    said = ranks(2, one_key, str(tmp_path))
    assert re.search(r"the ranks hold \d+ of the \d+ elements of .* \(rank 0\)", said[0])
    assert said[0] == said[1]
    assert not list(tmp_path.iterdir())


def test_a_manifest_without_a_piece_of_a_tensor_is_refused(tmp_path):
    folder = Path(ranks(2, synthetic.save, Spec(Grid(tp=2)), str(tmp_path))[0])
    content = store.read_manifest(folder)
    del content["format"], content["sha256"], content["tensors"]["exp_avg.layers.2.out"]["pieces"][1]
    (folder / store.MANIFEST).write_text(manifest.text(content))
    with pytest.raises(CheckpointError, match="it does not hold all of exp_avg.layers.2.out"):
        synthetic.load(None, ONE, str(folder))


def refuse(context, folder: str, spec: Spec) -> str:
    with pytest.raises(CheckpointError) as error:
        synthetic.load(context, spec, folder)
    return str(error.value)


@pytest.mark.parametrize("change, reason", [
    ({"layers.3.odd": (6, 7)}, r"first layers.3.odd: checkpoint has \[6, 7\], the model \[5, 7\]"),
    ({"layers.3.odd": None}, "first layers.3.odd: checkpoint has nothing"),
    ({"layers.8.odd": (5, 7)}, "1 parameters that ours has not, first layers.8.odd"),
])
def test_another_model_is_refused_on_every_rank(tmp_path, change, reason):
    """Only the ranks of one stage see the difference, or none does."""
    shapes = {name: f.shape for name, f in synthetic.facts(1).items()} | change
    facts = {name: Facts(shape) for name, shape in shapes.items() if shape}
    state = {kind: {name: Slice(torch.zeros(math.prod(f.shape))) for name, f in facts.items()}
             for kind in KINDS}
    folder = store.save(tmp_path, state, facts, Layout(), {"step": 1})
    said = ranks(4, refuse, str(folder), Spec(Grid(pp=2, dp=2), sharded=True))
    assert len(set(said)) == 1 and "holds another model" in said[0] and re.search(reason, said[0]), said


def test_a_kind_that_was_not_saved_is_named(tmp_path):
    state = {"parameters": {"x": Slice(torch.zeros(6))}}
    folder = store.save(tmp_path, state, {"x": Facts((6,))}, Layout(), {"step": 1})
    with pytest.raises(CheckpointError, match="it has no exp_avg"):
        store.load(folder, {"exp_avg": state["parameters"]}, {"x": Facts((6,))}, Layout())


def test_parameters_load_without_the_optimizer(tmp_path):
    folder = Path(synthetic.save(None, ONE, str(tmp_path)))
    state = {"parameters": synthetic.state(ONE, Layout())["exp_avg"]}
    store.load(folder, state, synthetic.facts(1), Layout())
    for name, x in state["parameters"].items():
        assert torch.equal(x.data, synthetic.whole("parameters", name).reshape(-1))


def last_good(context, folder: str) -> tuple[str, list[str], list[str]]:
    """What the ranks find, say and hash."""
    said, hashed, real = [], [], store.sha256

    def counted(path):
        hashed.append(f"{path.parent.name}/{path.name}")
        return real(path)

    store.sha256 = counted
    try:
        found = store.last_good(Path(folder), Layout(Grid(dp=2), context.rank), said.append)
    finally:
        store.sha256 = real
    return str(found), said, hashed


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("tear", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"])
def test_a_torn_checkpoint_is_passed_over_by_name_and_each_file_read_once(tmp_path, tear, name):
    for step in (1, 2):
        ranks(2, synthetic.save, Spec(Grid(dp=2)), str(tmp_path), step)
    good, torn = sorted(tmp_path.iterdir())
    tear(torn / name)
    with pytest.raises(CheckpointError, match=name):
        store.verify(torn)
    (found, said, first), (other, silent, second) = ranks(2, last_good, str(tmp_path))
    assert found == other == str(good) and silent == []
    assert [name in line for line in said] == [True]
    assert sorted(first + second) == sorted(set(first + second))
    assert {f"{good.name}/rank-0000{i}.safetensors" for i in (0, 1)} <= set(first + second)


def test_a_file_that_went_after_the_check_is_named(tmp_path):
    folder = Path(synthetic.save(None, ONE, str(tmp_path)))
    (folder / "rank-00000.safetensors").unlink()
    with pytest.raises(CheckpointError, match="rank-00000.safetensors cannot be read"):
        synthetic.load(None, ONE, str(folder))


def test_an_older_format_is_named(tmp_path):
    folder = Path(synthetic.save(None, ONE, str(tmp_path)))
    path = folder / store.MANIFEST
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(CheckpointError, match="format 1, this version reads 2"):
        store.verify(folder)


def test_the_newest_stay_and_leavings_of_a_crash_go(tmp_path):
    for step in (1, 2):
        synthetic.save(None, ONE, str(tmp_path), step)
    (tmp_path / "step-00000009.partial").mkdir()
    (tmp_path / "step-00000009.partial" / "rank-00000.safetensors").write_bytes(b"half")
    assert [p.name for p in store.checkpoints(tmp_path)] == ["step-00000002", "step-00000001"]
    synthetic.save(None, ONE, str(tmp_path), 3, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_crash_while_a_step_is_saved_again_leaves_one_of_the_two(tmp_path):
    """As after the older one was moved aside, and before or after the new one took its name."""
    old = Path(synthetic.save(None, ONE, str(tmp_path)))
    aside = old.rename(tmp_path / "step-00000001.replaced")
    assert store.last_good(tmp_path) == aside
    synthetic.load(None, ONE, str(aside))
    new = Path(synthetic.save(None, ONE, str(tmp_path)))
    assert store.last_good(tmp_path) == new
    synthetic.save(None, ONE, str(tmp_path), 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
