"""Commands that die between any two writes: `odradek` in processes that end themselves by SIGKILL at a call of choice.

`python -m tests.cluster.recovery.killed_commands` reads requests, a line of JSON each, and answers each with a line. The command
runs in a fork of this process, so Python and its modules are loaded once. The calls of `os` that change a disk are
counted. Before the call of that number the process kills itself. A write has a second number, at which half of it is done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.cli.running import ROOT, Outcome, environment
from tests.cli.running import odradek_here as run_here

CHANGES = ("ftruncate", "link", "mkdir", "rename", "replace", "rmdir", "truncate", "unlink")
SYNCS = ("fdatasync", "fsync")
"""Calls that do nothing here: what a killed process has written is in the kernel's memory, which stays."""
CHANGING_FLAGS = os.O_CREAT | os.O_TRUNC
LOADS, NEVER = -1, 0
PATIENCE_SECONDS = 60


@attrs.define
class Calls:
    """The names of the calls so far; the process dies at the call number `last`."""

    last: int
    names: list[str] = attrs.field(factory=list)

    def note(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def hook(calls: Calls) -> None:
    """Count the calls that change a disk, for the rest of this process."""

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            calls.note(name)
            return real(*args, **named)

        return call

    for name in CHANGES:
        setattr(os, name, counted(name, getattr(os, name)))
    for name in SYNCS:
        setattr(os, name, lambda fd: calls.note("sync"))
    os.remove = os.unlink
    real_open, real_write = os.open, os.write

    def open_file(path: Any, flags: int, *args: Any, **named: Any) -> int:
        if flags & CHANGING_FLAGS:
            calls.note("open")
        return real_open(path, flags, *args, **named)

    def write(fd: int, data: Any) -> int:
        calls.note("write")
        view = memoryview(data).cast("B")
        done = real_write(fd, view[: len(view) // 2])
        calls.note("half a write")
        return done + real_write(fd, view[done:])

    os.open, os.write = open_file, write


def serve() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["kill_at"] == LOADS:
            run_here(*request["words"])
            print("{}", flush=True)
            continue
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE_SECONDS)
            os.close(reader)
            calls = Calls(request["kill_at"])
            hook(calls)
            outcome = run_here(*request["words"])
            answer = [outcome.code, outcome.out, outcome.err, calls.names]
            with os.fdopen(writer, "w") as pipe:
                json.dump(answer, pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = json.loads(pipe.read() or "null")
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"answer": answer, "signal": os.WTERMSIG(status)}), flush=True)


@attrs.define
class Killer:
    """The process that runs such commands."""

    _process: subprocess.Popen[str]

    def run(self, *words: str | Path) -> Outcome:
        """Run a command to its end."""
        answer = self._ask(words, NEVER)
        assert answer["signal"] == 0, answer
        code, out, err, _ = answer["answer"]
        return Outcome(code, out, err)

    def load(self, *words: str | Path) -> None:
        """Run a command in the process itself, so that its modules are loaded for all that follow."""
        self._ask(words, LOADS)

    def moments(self, *words: str | Path) -> list[str]:
        """Run a command to its end; return the calls before which it may be killed, the first of which is number 1."""
        code, out, err, names = self._ask(words, NEVER)["answer"]
        assert code == 0, out + err
        return list(names)

    def kill(self, at: int, *words: str | Path) -> None:
        """Run a command that is killed at this moment."""
        answer = self._ask(words, at)
        assert answer["signal"] == signal.SIGKILL, answer

    def _ask(self, words: Sequence[str | Path], at: int) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"words": list(map(str, words)), "kill_at": at}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def killing(directory: Path) -> Iterator[Killer]:
    """Start the process; what commands unpack goes below `directory`."""
    words = [sys.executable, "-m", "tests.cluster.recovery.killed_commands"]
    variables = {**environment(), "PYTHONPATH": str(ROOT), "TMPDIR": str(directory)}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, cwd=ROOT
    ) as process:
        yield Killer(process)
        assert process.stdin is not None
        process.stdin.close()


if __name__ == "__main__":
    serve()
