"""Apache Kafka as a reference: fetch its jars with mvn, run one combined node on loopback.

The jars come from Maven Central by way of mvn into `$ODRADEK_KAFKA_JARS` (by default `~/.cache/apache-kafka/lib-4.3.0`)
and are reused once complete. If Java or mvn is missing, `KafkaUnavailable` is raised with the name of the missing
program, and callers report that they skip.

    python -m testkit.kafka_server fetch              fetch the jars, print their directory
    python -m testkit.kafka_server run --port 25092   run a node until interrupted
    python -m testkit.kafka_server tool CLASS ARGS    run one of Kafka's tools
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testkit.processes import (
    ServerProcess,
    combined_node_properties,
    command_prefix,
    free_ports,
    spawn,
    wait_until_serving,
)

KAFKA_VERSION = "4.3.0"
JAVA_MIN = 17
FETCH_SECONDS = 300
CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
HEAP = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
SHORT_LIVED = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM options for processes that run briefly: optimizing compilation would cost more than it saves."""
_COMPLETE = ".complete"

_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek</groupId><artifactId>jars</artifactId><version>1</version><dependencies>
%s</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n"
)

_LOG4J = """status=error
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=Console
appender.console.type=Console
appender.console.name=Console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
"""


class KafkaUnavailable(Exception):
    """Raised if Apache Kafka cannot run here. The message names the missing program."""


def jar_directory() -> Path:
    """Return the directory for Kafka's jars, whether it exists or not."""
    named = os.environ.get("ODRADEK_KAFKA_JARS")
    return Path(named) if named else Path.home() / ".cache" / "apache-kafka" / f"lib-{KAFKA_VERSION}"


@functools.cache
def java_command() -> str:
    """Return the path of the java program. Raises `KafkaUnavailable` if it is missing or too old."""
    java = shutil.which("java")
    if java is None:
        raise KafkaUnavailable("no java on the path")
    banner = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', banner)
    if version is None or int(version[1]) < JAVA_MIN:
        raise KafkaUnavailable(f"Kafka {KAFKA_VERSION} needs Java {JAVA_MIN}, java -version says: {banner!r}")
    return java


def ensure_jars() -> Path:
    """Return the directory with Kafka's jars; fetch them first if they are missing (about 140 MB). See
    `ensure_artifacts`.
    """
    return ensure_artifacts(jar_directory(), _ARTIFACTS)


def ensure_artifacts(directory: Path, artifacts: Sequence[str]) -> Path:
    """Fetch Maven artifacts (`group:name:version`) and their dependencies into `directory`, unless they are there.
    Return `directory`.

    Several processes may call this at the same time. Raises `KafkaUnavailable` if Java or mvn is missing, or mvn
    fails to fetch.
    """
    java_command()
    if (directory / _COMPLETE).exists():
        return directory
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(f"no mvn on the path to fetch jars, and none in {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock, tempfile.TemporaryDirectory() as project:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / _COMPLETE).exists():
            return directory
        wanted = "".join(_DEPENDENCY % tuple(artifact.split(":")) for artifact in artifacts)
        (Path(project) / "pom.xml").write_text(_POM % wanted)
        try:
            result = subprocess.run(
                [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={directory}"],
                cwd=project,
                capture_output=True,
                text=True,
                check=False,
                timeout=FETCH_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise KafkaUnavailable(f"mvn did not fetch {artifacts[0]} within {FETCH_SECONDS} s") from None
        if result.returncode:
            raise KafkaUnavailable(f"mvn could not fetch {artifacts[0]}: {result.stdout[-400:].strip()}")
        for binding in directory.glob("slf4j-simple*.jar"):
            binding.unlink()
        (directory / _COMPLETE).touch()
    return directory


def java_arguments(heap: Sequence[str] = SHORT_LIVED) -> list[str]:
    """Return the words of a java command with Kafka's jars; the caller adds a class and its arguments."""
    return [java_command(), *heap, "-cp", f"{ensure_jars()}/*"]


def run_tool(class_name: str, *arguments: str | Path, timeout_seconds: float = 120.0) -> str:
    """Run one of Kafka's command line tools, such as `kafka.tools.DumpLogSegments`, and return its standard output.

    Raises `subprocess.CalledProcessError` when the tool fails.
    """
    return subprocess.run(
        [*java_arguments(), class_name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=timeout_seconds,
    ).stdout


def node_properties(directory: Path, port: int, controller_port: int) -> dict[str, str]:
    """Return the properties of one combined Kafka node with a single log directory."""
    return {
        **combined_node_properties(directory, port, controller_port),
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


def start_kafka(
    directory: Path,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    cpus: Sequence[int] | None = None,
    heap: Sequence[str] = HEAP,
    classes: Path | None = None,
) -> ServerProcess:
    """Format `directory` unless it is formatted, start a Kafka node there, and wait until it serves.

    `classes` is a directory of compiled plugins. Raises `KafkaUnavailable`, or `ServerFailed` if the node does not
    start.
    """
    jars = ensure_jars()
    spare = free_ports(2)
    port = port or spare[0]
    directory.mkdir(parents=True, exist_ok=True)
    properties = {**node_properties(directory, port, spare[1]), **(settings or {})}
    properties_path = directory / "server.properties"
    properties_path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    logging_path = directory / "log4j2.properties"
    logging_path.write_text(_LOG4J)
    logging = f"-Dlog4j2.configurationFile={logging_path}"
    if not (directory / "data" / "meta.properties").exists():
        subprocess.run(
            [*java_arguments(), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", properties_path],
            check=True,
            capture_output=True,
        )
    server = spawn(
        f"Apache Kafka {KAFKA_VERSION}",
        [
            *(java_command(), *heap, logging, "-cp"),
            *(f"{jars}/*" if classes is None else f"{classes}:{jars}/*", "kafka.Kafka", properties_path),
        ],
        bootstrap=f"127.0.0.1:{port}",
        log_path=directory / "server.log",
        cpus=cpus,
    )
    wait_until_serving(server)
    return server


@contextmanager
def kafka_server(
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    cpus: Sequence[int] | None = None,
    heap: Sequence[str] = HEAP,
) -> Iterator[ServerProcess]:
    """Run a Kafka node for the block, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as name:
        server = start_kafka(Path(name), port=port, settings=settings, cpus=cpus, heap=heap)
        try:
            yield server
        finally:
            server.kill()


def main() -> int:
    """Run the subcommand `fetch`, `run` or `tool` of this module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch the jars and print where they are")
    run = commands.add_parser("run", help="run one node until interrupted")
    run.add_argument("--port", type=int, default=19092)
    run.add_argument("--data", type=Path, help="keep the data here (default: a temporary directory)")
    run.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    tool = commands.add_parser("tool", help="run one of Kafka's tools")
    tool.add_argument("class_name", metavar="CLASS")
    tool.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        if options.command == "fetch":
            print(ensure_jars())
        elif options.command == "tool":
            command = [*command_prefix(), *java_arguments(), options.class_name, *options.arguments]
            return subprocess.run(command, check=False).returncode
        else:
            _run_until_interrupted(options.port, options.data, options.settings)
    except KafkaUnavailable as reason:
        print(f"Apache Kafka cannot run here: {reason}", file=sys.stderr)
        return 3
    return 0


def _run_until_interrupted(port: int, data: Path | None, settings: Sequence[str]) -> None:
    chosen = dict(setting.split("=", 1) for setting in settings)
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as temporary:
        server = start_kafka(data or Path(temporary), port=port, settings=chosen)
        print(
            f"pid={server.pid} address={server.bootstrap} ready_seconds={server.ready_seconds:.1f}",
            flush=True,
        )
        try:
            server.process.wait()
        except KeyboardInterrupt:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
