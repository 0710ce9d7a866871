"""Reads that bypass the page cache, at any offset and of any length. They never read another file of the same name."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from odradek.env.ports import FileMissing
from odradek.env.real_descriptors import RealUncachedFile, open_uncached
from odradek.env.real_dirs import open_dir

SIZE = (3 << 20) + 777


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    content = Random(1).randbytes(SIZE)
    (tmp_path / "file").write_bytes(content)
    return content


def read(file: RealUncachedFile, count: int, offset: int) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: file.pread_into(buffer, offset)])


@pytest.mark.parametrize("is_direct", [True, False])
def test_any_place_and_length(tmp_path: Path, content: bytes, *, is_direct: bool) -> None:
    """A read works at any offset and length, and returns nothing beyond the end of the file."""
    path = str(tmp_path / "file")
    file = open_uncached(str(tmp_path), path, os.stat(path).st_ino)
    if not is_direct:
        file.close()
        file = RealUncachedFile(str(tmp_path), path, os.open(path, os.O_RDONLY), is_direct=False)
    for offset, count in (
        (0, 1),
        (0, SIZE),
        (4095, 2),
        (1, 1 << 20),
        (777, 2 << 20),
        (SIZE - 1, 50),
        (SIZE, 9),
    ):
        assert read(file, count, offset) == content[offset : offset + count], (offset, count)
    file.close()
    file.close()


def test_another_file_of_that_name_is_none(tmp_path: Path, content: bytes) -> None:
    """If the segment was renamed or removed, the read raises `FileMissing` and never reads another file of that
    name."""
    file = open_dir(str(tmp_path)).open("file")
    assert read(file.open_past_cache(), 10, 5) == content[5:15]
    os.rename(tmp_path / "file", tmp_path / "old")
    with pytest.raises(FileMissing):
        file.open_past_cache()
    (tmp_path / "file").write_bytes(b"another")
    with pytest.raises(FileMissing):
        file.open_past_cache()
