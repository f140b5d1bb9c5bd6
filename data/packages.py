"""Documents from installed Python packages: their docstrings, and the code of a share of their files.

The files come from the package's own record (`importlib.metadata`); nothing is imported. Parsing runs in
separate interpreters, one chunk of files each, which need the standard library alone.
"""

import ast
import hashlib
import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from data.document import Document, clean

ROOT = Path(__file__).resolve().parents[1]
TEST_FOLDERS = frozenset({"test", "tests", "testing"})
CHUNK_FILES = 96
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)
NESTED = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class SourceFile:
    """A Python file of a package: where it lies, its name within the installation, and what to take of it."""

    path: str
    name: str
    package: str
    code: bool


def package_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Version of each package. Raises ValueError naming the first that is not installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(
                f"package {package!r} of the corpus is not installed; "
                f"install it (pip install {package}) or leave it out of the lists of packages"
            ) from None
    return versions


def uniform(name: str, salt: str) -> float:
    """A number in [0, 1) that depends on the name and the salt alone."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{name}".encode()).digest()[:7], "big") / 2**56


def source_files(package: str, code_share: float) -> list[SourceFile]:
    """The package's Python files outside its tests.

    code_share: share of the files, chosen by a hash of their names, of which the code is taken as well.
    """
    listed = importlib.metadata.files(package)
    if not listed:
        raise ValueError(f"package {package!r} has no record of its files; install it from a wheel with pip")
    files = []
    for file in listed:
        if file.suffix == ".py" and ".." not in file.parts and TEST_FOLDERS.isdisjoint(file.parts):
            name = file.as_posix()
            code = uniform(name, "code") < code_share
            files.append(SourceFile(str(file.locate()), name, package, code))
    return files


def definitions(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The module and every class and function in it, with dotted names, in order of their lines."""
    stack = [("", module)]
    while stack:
        prefix, node = stack.pop()
        name = prefix
        if isinstance(node, DEFINITIONS):
            if node is not module:
                name = f"{prefix}.{node.name}" if prefix else node.name
            yield name, node
        children = [child for field in NESTED for child in getattr(node, field, ())]
        stack.extend((name, child) for child in reversed(children) if isinstance(child, BLOCKS))


def docstring(node: ast.AST) -> ast.Constant | None:
    """The constant that is the definition's docstring."""
    if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
        constant = node.body[0].value
        return constant if isinstance(constant.value, str) else None
    return None


def without_docstrings(text: str, docstrings: list[ast.Constant]) -> str:
    """The file's text without its docstrings and without the comment (often a licence) at its head."""
    lines = text.split("\n")
    for constant in docstrings:
        first, last = constant.lineno - 1, constant.end_lineno
        before = lines[first].encode()[: constant.col_offset].decode()
        if not before.strip():
            lines[first:last] = [None] * (last - first)
    head = 0
    while head < len(lines) and (lines[head] is None or lines[head].lstrip()[:1] in ("", "#")):
        head += 1
    return "\n".join(line for line in lines[head:] if line is not None)


def file_documents(file: SourceFile) -> list[Document] | None:
    """Docstrings of one file in order, then its code if asked; None if this Python cannot parse the file."""
    text = Path(file.path).read_text(encoding="utf-8-sig")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError:
        return None
    documents, constants = [], []
    for name, node in definitions(tree):
        constant = docstring(node)
        if constant is not None:
            constants.append(constant)
            source = f"{file.name}:{constant.lineno}:{name}" if name else f"{file.name}:{constant.lineno}"
            documents.append(Document(clean(inspect.cleandoc(constant.value)), source, file.package))
    if file.code:
        code = clean(without_docstrings(text, constants))
        documents.append(Document(code, f"{file.name}:code", file.package))
    return documents


def parse_chunk(files: list[SourceFile]) -> list[list[Document] | None]:
    """file_documents of each file, in a fresh interpreter."""
    request = "\n".join(json.dumps(asdict(file)) for file in files)
    answer = subprocess.run(
        [sys.executable, "-m", "data.packages"], input=request, cwd=ROOT,
        env={**os.environ, "PYTHONUTF8": "1"}, encoding="utf-8", capture_output=True,
    )
    if answer.returncode != 0:
        raise RuntimeError(f"reading package files failed: {answer.stderr.strip()}")
    replies = [json.loads(line) for line in answer.stdout.splitlines()]
    return [None if reply is None else [Document(**each) for each in reply] for reply in replies]


def read_packages(packages: tuple[str, ...], code_share: float,
                  max_bytes: int | None) -> Iterator[tuple[SourceFile, list[Document] | None]]:
    """Each file of the packages with its documents, in shuffled order, until they hold max_bytes of UTF-8.

    The order mixes the packages, so that a smaller corpus keeps their proportions.
    """
    files = [file for package in packages for file in source_files(package, code_share)]
    files.sort(key=lambda file: uniform(file.name, "order"))
    chunks = [files[i : i + CHUNK_FILES] for i in range(0, len(files), CHUNK_FILES)]
    held = 0
    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(chunks), workers):
            group = chunks[start : start + workers]
            for chunk, replies in zip(group, pool.map(parse_chunk, group), strict=True):
                for file, documents in zip(chunk, replies, strict=True):
                    held += sum(len(document.text.encode()) for document in documents or ())
                    if max_bytes is not None and held > max_bytes:
                        return
                    yield file, documents


if __name__ == "__main__":
    for line in sys.stdin:
        found = file_documents(SourceFile(**json.loads(line)))
        print(json.dumps(None if found is None else [asdict(document) for document in found]))
