"""Make the syncs of a node hang below one path while its disk works otherwise.

The node's interpreter loads our `sitecustomize`, whose `os.fsync` and `os.fdatasync` wait as long as the test wants.
Everything else in the process is as in production.
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
    """A switch for the syncs of all processes that are started with `environment`."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> HangingSyncs:
        """Write the `sitecustomize` module into a new folder."""
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
        """Make all syncs of files whose path begins with `prefix` hang until the block ends."""
        self.hang(prefix)
        try:
            yield
        finally:
            self.answer()

    def hang(self, prefix: Path | str) -> None:
        """Make all syncs of files whose path begins with `prefix` hang from now on."""
        draft = self.folder / "draft"
        draft.write_text(str(prefix))
        draft.rename(self._flag)

    def answer(self) -> None:
        """Let all syncs return."""
        self._flag.unlink(missing_ok=True)
