"""The tensors of a checkpoint folder: what is there, without reading it, and slices of it."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.checkpoint.huggingface.architecture import Architecture
from common.parameters import Facts

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATING = ("F64", "F32", "F16", "BF16")


def read_json(path: Path) -> dict:
    """A JSON object; ValueError naming the file when it is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are both
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not an object")
    return values


class Tensors:
    """Opens every shard of a folder; a context manager. Names are the architecture's own, whatever prefix
    the files use."""

    def __init__(self, folder: Path, architecture: Architecture):
        self.folder, self.architecture = folder, architecture
        self._open: dict[Path, safe_open] = {}
        self._place: dict[str, tuple[Path, str]] = {}
        for path in _shards(folder):
            self._open[path] = _opened(path)
            for stored in self._open[path].keys():  # noqa: SIM118 (not a dict)
                self._add(stored, path)

    def _add(self, stored: str, path: Path) -> None:
        prefix = self.architecture.prefix
        bare = stored.removeprefix(prefix)
        if self.architecture.ignored.fullmatch(bare):
            return
        name = stored if stored.startswith("lm_head.") else prefix + bare
        if name in self._place:
            raise ValueError(f"tensor {stored} stands in {self._place[name][0]} and again in {path}")
        self._place[name] = path, stored

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *error) -> None:
        self._open.clear()

    @property
    def names(self) -> set[str]:
        return set(self._place)

    def _slice(self, name: str):
        path, stored = self._place[name]
        return self._open[path].get_slice(stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors names it: F32, BF16, ..."""
        return self._slice(name).get_dtype()

    def read(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """Part of a tensor; nothing else of it is read."""
        return self._slice(name)[index]

    def check(self, expected: dict[str, tuple[int, ...]], spare: set[str]) -> None:
        """ValueError unless the tensors are `expected` (name -> shape), with or without any of `spare`."""
        held = self.names
        problems = [
            f"{kind} {_some(names)}"
            for kind, names in (
                ("missing:", sorted(expected.keys() - held)),
                ("unexpected:", sorted(held - expected.keys() - spare)),
            )
            if names
        ]
        problems += [
            f"{n} has shape {self.shape(n)}, config.json needs {shape}"
            for n, shape in expected.items()
            if n in held and self.shape(n) != shape
        ]
        problems += [f"{n} has dtype {self.dtype(n)}, needs one of {', '.join(FLOATING)}" for n in expected
                     if n in held and self.dtype(n) not in FLOATING]
        if problems:
            name = self.architecture.name
            raise ValueError(f"{self.folder} does not hold the tensors of {name}: {_some(problems, '; ')}")


def expected_shapes(facts: dict[str, Facts], architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Checkpoint tensor -> shape, for the parameters given by name."""
    return {
        piece.name: piece.stored_shape(f) for name, f in facts.items() for piece in architecture.pieces(name)
    }


def _some(items: list[str], between: str = ", ", most: int = 8) -> str:
    rest = len(items) - most
    return between.join(items[:most]) + (f"{between}and {rest} more" if rest > 0 else "")


def _shards(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        shards = sorted({folder / name for name in read_json(index).get("weight_map", {}).values()})
        missing = [str(p) for p in shards if not p.is_file()]
        if missing or not shards:
            raise ValueError(f"{index} names files that are not there: {_some(missing)}" if shards else
                             f"{index} has no weight_map")
        return shards
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickled:
        raise ValueError(
            f"{folder} has no {SINGLE}, only {_some(pickled)}: pickled files can run code and are not read. "
            'If you trust them, convert: python -c "from transformers import AutoModelForCausalLM as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
        )
    raise ValueError(f"{folder} has neither {SINGLE} nor {INDEX}: it holds no weights")


def _opened(path: Path):
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
