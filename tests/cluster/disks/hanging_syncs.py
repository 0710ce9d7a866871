"""Syncs of a node's process that do not come back while the test says so, below one path. The disk is sound otherwise.

The node's interpreter loads `sitecustomize`, which waits in `os.fsync` and `os.fdatasync`. So the process, its threads and
its files are those of production.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

__all__ = ["HangingSyncs"]

_SITECUSTOMIZE = """
import os
import time

FLAG = os.environ["HANGING_SYNCS"]


def _hangs(fd):
    try:
        with open(FLAG) as flag:
            return os.readlink(f"/proc/self/fd/{fd}").startswith(flag.read())
    except FileNotFoundError:
        return False


def _waiting(sync):
    def wait(fd):
        while _hangs(fd):
            time.sleep(0.01)
        return sync(fd)

    return wait


os.fsync, os.fdatasync = _waiting(os.fsync), _waiting(os.fdatasync)
"""


@attrs.frozen
class HangingSyncs:
    """A switch for processes that are started with `environment`."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> HangingSyncs:
        """Write what the processes load into a folder of its own."""
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        return cls(folder)

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder), "HANGING_SYNCS": str(self._flag)}

    @property
    def _flag(self) -> Path:
        return self.folder / "hangs"

    @contextmanager
    def hanging(self, prefix: Path | str) -> Iterator[None]:
        """Let no sync of a file whose path begins like this come back within the block."""
        self.hang(prefix)
        try:
            yield
        finally:
            self.answer()

    def hang(self, prefix: Path | str) -> None:
        """Let no such sync come back from now on."""
        draft = self.folder / "draft"
        draft.write_text(str(prefix))
        draft.rename(self._flag)

    def answer(self) -> None:
        """Let all syncs come back."""
        self._flag.unlink(missing_ok=True)
