"""Fetches the jars of Spark's own Kafka connector with mvn, as a reference for our source and sink.

They come from Maven Central by way of mvn into `$ODRADEK_SPARK_JARS` (by default `~/.cache/spark-kafka-4.2.0`) and are
reused once complete. If Java or mvn is missing, `KafkaUnavailable` is raised with the name of the missing program, and
callers report that they skip.

    python -m testkit.spark_jars      fetch them, print the value for spark.jars
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from testkit.kafka_server import FETCH_SECONDS, KafkaUnavailable, java_command

__all__ = ["SPARK_VERSION", "ensure_spark_jars", "spark_jars"]

SPARK_VERSION = "4.2.0"
_ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    # This jar is not published for 4.2.0; only delegation tokens need it.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)


def jar_directory() -> Path:
    """Return the directory for the jars, whether it exists or not."""
    named = os.environ.get("ODRADEK_SPARK_JARS")
    return Path(named) if named else Path.home() / ".cache" / f"spark-kafka-{SPARK_VERSION}"


def ensure_spark_jars() -> list[Path]:
    """Return the paths of the connector's jars; fetch them first if they are missing (about 8 MB).

    Several processes may call this at the same time. Raises
    `KafkaUnavailable` if Java or mvn is missing, or mvn fails to fetch.
    """
    java_command()
    directory = jar_directory()
    if not _found(directory):
        maven = shutil.which("mvn")
        if maven is None:
            raise KafkaUnavailable(
                f"no mvn on the path to fetch Spark's Kafka connector, and none in {directory}"
            )
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _found(directory):
                for artifact in _ARTIFACTS:
                    _fetch(maven, artifact, directory)
    return _found(directory)


def spark_jars() -> str:
    """Return the value of `spark.jars`. Raises the errors of `ensure_spark_jars`."""
    return ",".join(map(str, ensure_spark_jars()))


def _found(directory: Path) -> list[Path]:
    """Return the paths of all jars; an empty list if any is missing."""
    names = ["{1}-{2}.jar".format(*artifact.split(":")) for artifact in _ARTIFACTS]
    jars = [directory / name for name in names]
    return jars if all(jar.exists() for jar in jars) else []


def _fetch(maven: str, artifact: str, directory: Path) -> None:
    command = [
        maven,
        "-q",
        "-B",
        "dependency:copy",
        f"-Dartifact={artifact}:jar",
        "-Dmdep.useBaseVersion=true",
    ]
    with tempfile.TemporaryDirectory(dir=directory) as place:
        try:
            result = subprocess.run(
                [*command, f"-DoutputDirectory={place}"],
                cwd=place,
                capture_output=True,
                text=True,
                check=False,
                timeout=FETCH_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise KafkaUnavailable(f"mvn did not fetch {artifact} within {FETCH_SECONDS} s") from None
        if result.returncode:
            raise KafkaUnavailable(f"mvn could not fetch {artifact}: {result.stdout[-400:].strip()}")
        for jar in Path(place).glob("*.jar"):
            jar.rename(directory / jar.name)


if __name__ == "__main__":
    print(spark_jars())
