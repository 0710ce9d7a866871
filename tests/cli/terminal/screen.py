"""A real terminal for tests: tmux runs a program, keys are sent to it, and the screen is read as text."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import environment

__all__ = ["Screen", "needs", "screen"]

PATIENCE_SECONDS = 30.0


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test aloud on a machine that lacks one of these programs."""
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"this machine lacks {', '.join(missing)} (a Debian package)"
    )


class Screen:
    """A terminal with a program in it."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def tmux(self, *words: str) -> str:
        """Run a command of tmux, and return its output."""
        done = subprocess.run(
            ["tmux", "-L", self._socket, *words], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def type(self, text: str) -> None:
        """Enter a text."""
        self.tmux("send-keys", "-t", "0", "-l", "--", text)

    def keys(self, *keys: str) -> None:
        """Send keys by their names, such as `Enter`, `Tab`, `C-c`."""
        self.tmux("send-keys", "-t", "0", *keys)

    def text(self, *, colours: bool = False) -> str:
        """Return what the screen shows; with `colours` including the codes of colours."""
        return self.tmux("capture-pane", "-p", "-t", "0", *(["-e"] if colours else []))

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal."""
        self.tmux("resize-window", "-t", "0", "-x", str(columns), "-y", str(lines))

    def wait(self, what: str | Callable[[str], bool]) -> str:
        """Wait until the screen shows a text, or until `what` is true for its text. Return the text.

        Raises `AssertionError` after `PATIENCE_SECONDS`.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            text = self.text()
            if what in text if isinstance(what, str) else what(text):
                return text
            time.sleep(0.05)
        raise AssertionError(f"the screen never showed {what}:\n{self.text()}")


@contextmanager
def screen(
    words: Sequence[str | Path],
    *,
    bootstrap: str | None = None,
    columns: int = 100,
    lines: int = 30,
    more: Mapping[str, str] | None = None,
) -> Iterator[Screen]:
    """Run a program in a terminal of this size. It ends with the block."""
    name = f"odradek-test-{os.getpid()}-{time.monotonic_ns()}"
    env = environment(bootstrap)
    env |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}",
        "LC_ALL": "C.UTF-8",
        "SHELL": "/bin/sh",
        **(more or {}),
    }
    env.pop("TMUX", None)
    if not (more or {}).get("NO_COLOR"):
        env.pop("NO_COLOR", None)
    command = shlex.join(map(str, words))
    subprocess.run(
        [
            "tmux",
            "-L",
            name,
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            str(columns),
            "-y",
            str(lines),
            command,
        ],
        env=env,
        check=True,
        timeout=60,
    )
    found = Screen(name)
    try:
        yield found
    finally:
        # The program may have ended, and with it this server of tmux.
        subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False, timeout=60)
