"""Small files that are replaced whole."""

import os
import stat

import pytest

from common.checkpoint.files import replaced, write_text


def test_a_file_is_replaced_after_it_is_on_the_disk_and_then_its_folder_is_flushed(tmp_path, monkeypatch):
    done = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def replace(source, target):
        done.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    write_text(tmp_path / "new" / "a.txt", "é\n")
    assert done == ["file", "replace", "folder"]
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"\xc3\xa9\n"
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_the_old_file_stays_until_the_block_has_ended_well(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with pytest.raises(KeyError), replaced(path) as partial:
        partial.write_bytes(b"half")
        assert path.read_bytes() == b"old"
        raise KeyError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]
    with replaced(path) as partial:
        partial.write_bytes(b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udc80")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.bin"]
