"""Saves that go on beside training: what they write, when they end, and what a failed one leaves."""

import resource
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from common.checkpoint import background, storage, store
from common.checkpoint.store import CheckpointError
from common.grid import Grid
from common.layout import Layout
from common.parameters import Facts, Slice
from tests.common.checkpoint import synthetic
from tests.common.checkpoint.synthetic import Spec
from tests.distributed import ranks

PAIR = Spec(Grid(tp=2))


@contextmanager
def held_back():
    """Writers of this process wait until the event is set."""
    event, real = threading.Event(), storage.save_file

    def slow(*arguments):
        assert event.wait(30)
        real(*arguments)

    storage.save_file = slow
    try:
        yield event
    finally:
        event.set()
        storage.save_file = real


@contextmanager
def small_files(limit: int = 2000):
    """Files of this process cannot grow past `limit` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_while_training(context, folder: str) -> None:
    layout = Layout(PAIR.grid, context.rank)
    state, total = synthetic.state(PAIR, layout), torch.ones(1000)
    with held_back() as written:
        saving = store.start_save(Path(folder), state, synthetic.names(layout), layout, {"step": 1})
        for part in state.values():  # the next step changes everything
            for x in part.values():
                x.data.fill_(7)
        for _ in range(20):
            dist.all_reduce(total)  # on the default group, while the save waits in its own
        assert not saving.done() and not list(Path(folder).glob("step-00000001"))
        written.set()
        assert saving.wait() == Path(folder) / "step-00000001" and saving.done()
    assert total.eq(2.0 ** 20).all()


def test_training_goes_on_during_a_save_and_does_not_reach_it(tmp_path):
    ranks(2, save_while_training, str(tmp_path))
    ranks(2, synthetic.load, PAIR, str(tmp_path / "step-00000001"))


def save_again(context, folder: str) -> None:
    layout = Layout(PAIR.grid, context.rank)
    state, facts = synthetic.state(PAIR, layout), synthetic.names(layout)

    def start(step: int) -> store.Saving:
        return store.start_save(Path(folder), state, facts, layout, {"step": step}, keep=1)

    def there() -> list[str]:
        dist.barrier()
        return [p.name for p in store.checkpoints(Path(folder))]

    start(1).wait()
    with held_back() as written:
        second = start(2)
        assert there() == ["step-00000001"]
        written.set()
        second.wait()
    assert there() == ["step-00000002"]
    dist.barrier()
    with held_back() as written:
        third = start(3)
        threading.Timer(0.2, written.set).start()
        fourth = start(4)
        assert third.done()
    fourth.wait()


def test_one_save_at_a_time_and_the_last_complete_one_stays(tmp_path):
    ranks(2, save_again, str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000004"]


def fail_on_rank_1(context, folder: str) -> list[str]:
    """The error of a save whose second writer runs out of space: at wait, at the next start, and at a plain
    save."""
    layout, said = Layout(PAIR.grid, context.rank), []
    state, facts = synthetic.state(PAIR, layout), synthetic.names(layout)

    def start(step: int) -> store.Saving:
        return store.start_save(Path(folder), state, facts, layout, {"step": step}, keep=1)

    start(1).wait()
    for attempt in ("wait", "start", "save"):
        with pytest.raises(CheckpointError) as error, small_files() if context.rank == 1 else nullcontext():
            if attempt == "save":
                store.save(Path(folder), state, facts, layout, {"step": 2}, keep=1)
            else:
                saving = start(2)
                saving.wait() if attempt == "wait" else start(3)
        said.append(str(error.value))
        dist.barrier()
        assert [p.name for p in Path(folder).iterdir()] == ["step-00000001"]
        dist.barrier()
    assert all(torch.equal(x.data, y.data) for kind, part in synthetic.state(PAIR, layout).items()
               for x, y in zip(part.values(), state[kind].values(), strict=True))
    start(4).wait()
    return said


def test_a_writer_without_space_fails_the_save_on_every_rank_and_keeps_the_one_before(tmp_path, capfd):
    said = ranks(2, fail_on_rank_1, str(tmp_path))
    assert said[0] == said[1] and len(set(said[0])) == 1
    assert "step-00000002 was not written" in said[0][0] and "step-00000002.partial/rank-00001" in said[0][0]
    assert "File too large" in said[0][0] and "(rank 1)" in said[0][0]
    ranks(2, synthetic.load, PAIR, str(tmp_path / "step-00000004"))


def lose_rank_1(context, folder: str) -> str:
    """Rank 1 closes its connections of checkpoints, as its end would."""
    layout = Layout(PAIR.grid, context.rank)
    dist.barrier(background.group(layout))
    if context.rank == 1:
        dist.destroy_process_group(background._groups.pop(layout))
        return ""
    with pytest.raises(CheckpointError) as error:
        store.save(Path(folder), synthetic.state(PAIR, layout), synthetic.names(layout), layout, {"step": 1})
    return str(error.value)


def test_a_rank_that_goes_ends_the_save_of_the_others(tmp_path):
    said = ranks(2, lose_rank_1, str(tmp_path))[0]
    assert "step-00000001 was not written: another rank has gone" in said
    assert not list(tmp_path.iterdir())


def fail_on_rank_0(context, folder: str) -> str:
    layout = Layout(PAIR.grid, context.rank)
    state, facts = synthetic.state(PAIR, layout), synthetic.names(layout)
    saving = store.start_save(Path(folder), state, facts, layout, {"step": 1})
    with pytest.raises(CheckpointError) as error:
        saving.wait()
    return str(error.value)


def test_a_folder_that_cannot_be_made_is_named_on_every_rank(tmp_path):
    (tmp_path / "file").write_text("")
    said = ranks(2, fail_on_rank_0, str(tmp_path / "file" / "checkpoints"))
    assert said[0] == said[1] and "Not a directory" in said[0] and str(tmp_path / "file") in said[0]


def test_one_process_saves_beside_training_too(tmp_path):
    layout, facts, data = Layout(), {"x": Facts((6,))}, torch.arange(6.0)
    state = {"parameters": {"x": Slice(data)}}
    with held_back() as written:
        saving = store.start_save(tmp_path, state, facts, layout, {"step": 1})
        data.zero_()
        assert not saving.done()
        written.set()
        folder = saving.wait()
    store.load(folder, state, facts, layout)
    assert data.tolist() == [0, 1, 2, 3, 4, 5]


ENDS = """
import sys, time, torch
from pathlib import Path
from common.checkpoint import background, storage, store
from common.layout import SERIAL
from common.parameters import Facts, Slice
real = storage.save_file
storage.save_file = lambda *arguments: (time.sleep(0.5), real(*arguments))
state = {"parameters": {"x": Slice(torch.ones(6))}}
store.start_save(Path(sys.argv[1]), state, {"x": Facts((6,))}, SERIAL, {"step": 1})
"""


def test_a_process_that_ends_waits_for_its_save(tmp_path):
    subprocess.run([sys.executable, "-c", ENDS, str(tmp_path)], check=True, timeout=110)
    store.verify(tmp_path / "step-00000001")
