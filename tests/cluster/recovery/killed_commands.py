"""Run `odradek` commands that kill themselves with SIGKILL before a chosen write.

`python -m tests.cluster.recovery.killed_commands` reads requests, one JSON document per line, and answers each with one
line. A command runs in a fork of this process, so Python and the modules are loaded only once. The fork counts its `os`
calls that change a disk, and kills itself before the call with the given number. A write counts twice: before it
begins, and when half of it is done.
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
"""Calls that are counted, but do nothing. Data written by a killed process stays in the kernel\'s memory."""
CHANGING_FLAGS = os.O_CREAT | os.O_TRUNC
LOADS, NEVER = -1, 0
PATIENCE_SECONDS = 60


@attrs.define
class Calls:
    """The names of the counted calls. The process kills itself at call number `last`."""

    last: int
    names: list[str] = attrs.field(factory=list)

    def note(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def hook(calls: Calls) -> None:
    """Make this process count its calls that change a disk."""

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
    """The process that runs such commands, as seen by the tests."""

    _process: subprocess.Popen[str]

    def run(self, *words: str | Path) -> Outcome:
        """Run a command to its end."""
        answer = self._ask(words, NEVER)
        assert answer["signal"] == 0, answer
        code, out, err, _ = answer["answer"]
        return Outcome(code, out, err)

    def load(self, *words: str | Path) -> None:
        """Run a command in the process itself, so that all later forks have its modules."""
        self._ask(words, LOADS)

    def moments(self, *words: str | Path) -> list[str]:
        """Run a command to its end; return the names of its calls. It can be killed before each; the first is number 1."""
        code, out, err, names = self._ask(words, NEVER)["answer"]
        assert code == 0, out + err
        return list(names)

    def kill(self, at: int, *words: str | Path) -> None:
        """Run a command that is killed before the call with this number."""
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
    """Start the process. The commands unpack temporary files below `directory`."""
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
