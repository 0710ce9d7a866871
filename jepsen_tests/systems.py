"""The systems under test: how a node of each is configured, prepared and started. Both read Kafka's properties files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
_FORMAT_SECONDS = 60.0
_LOG4J = """status=error
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=Console
appender.console.type=Console
appender.console.name=Console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
"""


class Unavailable(Exception):
    """Raised when the system cannot run here; the message names the missing part."""


class System(Protocol):
    """A kind of node."""

    @property
    def name(self) -> str:
        """The system's name on the command line."""
        ...

    def format(self, properties: Path) -> None:
        """Prepare the directories that the properties name, for the cluster `CLUSTER_ID`."""
        ...

    def command(self, properties: Path) -> Sequence[str]:
        """Return the command that starts a node in the foreground."""
        ...


@attrs.frozen
class Odradek:
    """The command beside the interpreter that runs us, or the one on the path."""

    name: str = "odradek"

    def format(self, properties: Path) -> None:
        _prepare([_odradek(), "storage", "format", "--cluster-id", CLUSTER_ID, str(properties)])

    def command(self, properties: Path) -> Sequence[str]:
        return [_odradek(), "server", str(properties)]


@attrs.frozen
class ApacheKafka:
    """Apache Kafka from its jars (`$ODRADEK_KAFKA_JARS`, by default where `testkit.kafka_server fetch` leaves them)."""

    name: str = "kafka"
    heap: Sequence[str] = ("-Xmx512m", "-Xms512m", "-XX:+UseG1GC")
    version: str = "4.3.0"

    def format(self, properties: Path) -> None:
        tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
        _prepare([*self._java("-Xmx128m", "-XX:TieredStopAtLevel=1"), *tool])

    def command(self, properties: Path) -> Sequence[str]:
        logging = properties.with_name("log4j2.properties")
        logging.write_text(_LOG4J)
        return [
            *self._java(*self.heap, f"-Dlog4j2.configurationFile={logging}"),
            "kafka.Kafka",
            str(properties),
        ]

    def _java(self, *options: str) -> list[str]:
        java = shutil.which("java")
        named = os.environ.get("ODRADEK_KAFKA_JARS")
        jars = Path(named) if named else Path.home() / ".cache" / "apache-kafka" / f"lib-{self.version}"
        if java is None:
            raise Unavailable("no java on the path")
        if not (jars / ".complete").exists():
            raise Unavailable(f"no jars of Apache Kafka in {jars}; `python -m testkit.kafka_server fetch`")
        return [java, *options, "-cp", f"{jars}/*"]


SYSTEMS: dict[str, type[Odradek] | type[ApacheKafka]] = {"odradek": Odradek, "kafka": ApacheKafka}


def _odradek() -> str:
    beside = Path(sys.executable).with_name("odradek")
    found = str(beside) if beside.exists() else shutil.which("odradek")
    if found is None:
        raise Unavailable("no odradek beside the interpreter, nor on the path")
    return found


def _prepare(command: Sequence[str]) -> None:
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_FORMAT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode:
        raise Unavailable(
            f"{' '.join(command[:3])}... failed: {(result.stderr or result.stdout).strip()[-400:]}"
        )
