"""Run the real command line, either as a process or in this process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs

from odradek.cli.__main__ import main
from odradek.env.real_descriptors import readable
from testkit.odradek_server import living_nursery

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 60.0


@attrs.frozen
class Outcome:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    def json(self, code: int = 0) -> Any:
        """Parse the single JSON document that the command printed. The command must have ended with this status."""
        assert self.code == code, (self.code, self.err)
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        """Parse the JSON documents that the command printed, one per line. The command must have succeeded."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def refusal(self) -> str:
        """Return the only line on stderr, without its prefix. The command must have failed with status 1."""
        assert self.code == 1, (self.code, self.out, self.err)
        (line,) = self.err.splitlines()
        assert line.startswith("odradek: ")
        return line.removeprefix("odradek: ")


def command(*words: str | Path) -> list[str]:
    """Return the arguments that run this command as a process."""
    return [sys.executable, "-m", "odradek", *map(str, words)]


def environment(bootstrap: str | None = None) -> dict[str, str]:
    """Copy our environment without the user's ODRADEK settings, and set the bootstrap address if one is given."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ODRADEK")}
    return clean | ({"ODRADEK_BOOTSTRAP": bootstrap} if bootstrap is not None else {})


def odradek(
    *words: str | Path, bootstrap: str | None = None, stdin: bytes = b"", cwd: Path = ROOT
) -> Outcome:
    """Run a command as a process until it ends."""
    done = subprocess.run(
        command(*words),
        input=stdin,
        capture_output=True,
        env=environment(bootstrap) | {"PYTHONPATH": str(ROOT)},
        cwd=cwd,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def odradek_here(*words: str | Path, bootstrap: str | None = None, stdin: bytes = b"") -> Outcome:
    """Run a command in this process. This saves the start of Python, a fifth of a second of CPU."""
    streams = {
        name: io.TextIOWrapper(io.BytesIO(given))
        for name, given in (("stdin", stdin), ("stdout", b""), ("stderr", b""))
    }
    with (
        patch.dict(os.environ, environment(bootstrap), clear=True),
        patch.multiple(sys, **streams),
    ):
        code = main([*map(str, words)])
    return Outcome(code, *(_written(streams[name]) for name in ("stdout", "stderr")))


def has_ended(pid: int, seconds: float) -> bool:
    """Wait until a process ends, which need not be our child. Return False if it still runs after `seconds`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(readable([descriptor], seconds))
    finally:
        os.close(descriptor)


def odradek_in_nursery(*words: str | Path) -> Outcome:
    """Run a command in a process that the nursery forks, which saves the start of Python and all imports.

    Use it for a node that refuses to start. A node changes its process: signal handlers, limits and locks.
    """
    with patch.dict(os.environ, environment(), clear=True):
        process = living_nursery().start_with_pipes(words)
    try:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Outcome(process.returncode, out.decode(), err.decode())


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


def words_of(table: str) -> list[list[str]]:
    """Split a table into rows of cells, header first. No cell may contain blanks."""
    return [line.split() for line in table.splitlines()]


def start(words: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command that keeps running. The caller ends it by its process id."""
    return subprocess.Popen(
        command(*words),
        env=environment() | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        **options,
    )
