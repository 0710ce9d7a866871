"""A producer and a consumer of Java's client library, with its defaults, in a JVM of their own."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from bench.failover.watches import Watch
from testkit.kafka_server import SHORT_LIVED, ensure_jars, java_command
from testkit.processes import command_prefix

if TYPE_CHECKING:
    from bench.failover.bench import Bench

__all__ = ["Java"]

SOURCE = Path(__file__).with_name("FailoverClients.java")
END_SECONDS_MAX = 90.0


class Java(Watch):
    """Runs `FailoverClients.java`. It prints when each record was acknowledged or read, by the system's monotonic
    clock, which is Python's, too.
    """

    parts: ClassVar = {"java-produce": "Java produces", "java-consume": "Java consumes"}

    def __init__(self, bench: Bench, victim: int) -> None:
        super().__init__(bench, victim)
        topic, partition = self.place
        words = [java_command(), *SHORT_LIVED, "-cp", f"{ensure_jars()}/*", str(SOURCE)]
        self._process = subprocess.Popen(
            [*command_prefix(), *words, self.bootstrap, topic, str(partition), self.prefix.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self._delivered: list[bytes] = []
        self.threads = [threading.Thread(target=self._read, args=(self._process.stdout,))]

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                kind, nanoseconds, value = line.rstrip("\n").split(" ", 2)
                self.times[kind].append(int(nanoseconds) / 1e9)
                if kind == "java-produce":
                    self._delivered.append(value.encode())

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        finally:
            self._process.kill()
            super().__exit__()

    def check(self) -> None:
        self.read_once(self.place[0], [self.place[1]], self._delivered)
