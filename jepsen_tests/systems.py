"""The systems under test, Odradek and Apache Kafka: how to format and start a node. Both read Kafka's properties
files.
"""

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
    """Raised if the system cannot run here. The message names the missing part."""


class System(Protocol):
    """A system whose nodes can be tested."""

    @property
    def name(self) -> str:
        """The system's name on the command line."""
        ...

    def format(self, properties: Path) -> None:
        """Format the directories in this properties file, for the cluster `CLUSTER_ID`."""
        ...

    def command(self, properties: Path) -> Sequence[str]:
        """Return the command that runs a node in the foreground with this properties file."""
        ...


@attrs.frozen
class Odradek:
    """Odradek, by the command of this interpreter's environment, or else the one in PATH."""

    name: str = "odradek"

    def format(self, properties: Path) -> None:
        _prepare([_odradek(), "storage", "format", "--cluster-id", CLUSTER_ID, str(properties)])

    def command(self, properties: Path) -> Sequence[str]:
        return [_odradek(), "server", str(properties)]


@attrs.frozen
class ApacheKafka:
    """Apache Kafka, run from its jars (`$ODRADEK_KAFKA_JARS`, by default the directory of `testkit.kafka_server
    fetch`).
    """

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
