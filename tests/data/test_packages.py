"""Docstrings and code of installed packages, read without importing them."""

import importlib
import inspect
import sys

import pytest

from data.packages import SourceFile, file_documents, package_versions, read_packages, source_files

MODULE = '''# Licence of nobody.
#
"""Module text."""
import os

raise_on_import = os.environ["A_NAME_THAT_IS_NOT_SET"]


class Outer:
    """Outer text.

        Indented example.
    Last line.
    """

    class Inner:
        'Inner text.'

        async def method(self):
            """Method text, \\u00e9 escaped."""
            return "not a docstring"

    if raise_on_import:
        def conditional(self):
            r"""Raw \\alpha text."""
    else:
        def conditional(self):
            """Other branch."""


try:
    def guarded(): """On the line of its definition."""
except ValueError:
    def guarded():
        """In the handler."""


def bare():
    b"""Bytes are no docstring."""
    return 1
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with metadata, as a wheel leaves it."""
    files = {
        "made_up/__init__.py": MODULE,
        "made_up/plain.py": 'def first():\n    """First text."""\n    return 1\n\n\n\nVALUE = 2\n',
        "made_up/tests/test_it.py": '"""Test text."""\n',
        "made_up/future.py": "def broken(:\n",
        "made_up/data.txt": "no Python",
        "made_up-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: made_up\nVersion: 1.5\n",
    }
    record = [*files, "made_up-1.5.dist-info/RECORD"]
    files["made_up-1.5.dist-info/RECORD"] = "".join(f"{name},,\n" for name in record)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def documents(code_share: float, max_bytes: int | None = None) -> dict:
    return {file.name: found for file, found in read_packages(("made_up",), code_share, max_bytes)}


def test_docstrings_in_order_and_nothing_imported(installed):
    found = documents(code_share=0)
    assert set(found) == {"made_up/__init__.py", "made_up/plain.py", "made_up/future.py"}
    assert found["made_up/future.py"] is None
    texts = [document.text for document in found["made_up/__init__.py"]]
    assert texts == ["Module text.", "Outer text.\n\n    Indented example.\nLast line.", "Inner text.",
                     "Method text, é escaped.", "Raw \\alpha text.", "Other branch.",
                     "On the line of its definition.", "In the handler."]
    assert found["made_up/__init__.py"][3].source == "made_up/__init__.py:20:Outer.Inner.method"
    assert {document.package for document in found["made_up/plain.py"]} == {"made_up"}
    assert "made_up" not in sys.modules


def test_docstrings_agree_with_inspect(installed):
    """On a module that can be imported, the objects' own docstrings."""
    found = {document.source.split(":")[-1]: document.text for document in documents(0)["made_up/plain.py"]}
    module = importlib.import_module("json.decoder")
    real = file_documents(SourceFile(module.__file__, "json/decoder.py", "json", False))
    by_name = {document.source.split(":")[-1]: document.text for document in real}
    assert by_name["JSONDecoder.decode"] == inspect.getdoc(module.JSONDecoder.decode).strip()
    assert by_name["JSONDecodeError"] == inspect.getdoc(module.JSONDecodeError).strip()
    assert found == {"first": "First text."}


def test_code_leaves_out_docstrings_and_licence(installed):
    found = documents(code_share=1)
    plain = found["made_up/plain.py"][-1]
    assert (plain.text, plain.source) == ("def first():\n    return 1\n\n\n\nVALUE = 2", "made_up/plain.py:code")
    code = found["made_up/__init__.py"][-1].text
    assert code.startswith("import os") and "not a docstring" in code and "Bytes are no docstring" in code
    assert not any(each in code for each in ("Licence", "Outer text", "Method text", "Raw"))


def test_code_share_is_a_share_of_the_files_fixed_by_their_names():
    files = source_files("numpy", 0.3)
    chosen = {file.name for file in files if file.code}
    assert 0.2 < len(chosen) / len(files) < 0.4
    assert chosen == {file.name for file in source_files("numpy", 0.3) if file.code}
    assert chosen < {file.name for file in source_files("numpy", 0.5) if file.code}


def test_max_bytes_takes_a_beginning_of_the_same_order(installed):
    everything = [file.name for file, _ in read_packages(("made_up",), 0, None)]
    listed = [file.name for file in source_files("made_up", 0)]
    assert sorted(everything) == sorted(listed)
    whole = sum(len(d.text.encode()) for found in documents(0).values() for d in found or ())
    some = documents(0, whole - 1)
    assert list(some) == everything[: len(some)] and len(some) < len(everything)
    assert len(documents(0, whole)) == len(everything)


def test_missing_package_is_named():
    with pytest.raises(ValueError, match="'no-such-package' of the corpus is not installed; install it"):
        package_versions(("numpy", "no-such-package"))


def test_versions_are_recorded(installed):
    assert package_versions(("made_up",)) == {"made_up": "1.5"}
