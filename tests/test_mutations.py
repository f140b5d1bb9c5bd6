"""Every mutation still fits the code; `python -m tests.mutations` runs the tests against each."""

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS
from tests.mutations.__main__ import COPIED, ROOT, apply


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_mutation_applies_once(mutation, tmp_path):
    target = tmp_path / mutation.file
    target.parent.mkdir(parents=True)
    target.write_text((ROOT / mutation.file).read_text())
    apply(mutation, tmp_path)
    changed = target.read_text()
    assert changed != (ROOT / mutation.file).read_text()
    compile(changed, mutation.file, "exec")
    assert all((ROOT / test).exists() and Path(test).parts[0] in COPIED for test in mutation.tests)


def test_names_are_unique():
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
