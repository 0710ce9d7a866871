"""Measures the CPU seconds of commands of the command line, compared with an empty Python program and with Kafka's
tool.

    python -m bench.programs.commands [--passes N] [--no-kafka]

Each command is a process that connects to one of our nodes, which has a topic with two partitions. The empty program
takes turns with them. The figure is user and system time of the process, as a median. `topic describe` is compared with
Kafka's `TopicCommand --describe` against the same node.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from testkit.kafka_server import KafkaUnavailable, java_arguments
from testkit.odradek_server import odradek_server

PASSES = 9
KAFKA_PASSES = 3
TOPIC = "commands"
COMMANDS = (
    ("--version",),
    ("topic", "list"),
    ("topic", "describe", TOPIC),
    ("group", "list"),
    ("cluster", "status"),
)
TIMEOUT_SECONDS = 120.0
"""The seconds after which a command counts as hanging; it should take less than one."""


def own_seconds(words: Sequence[str]) -> float:
    """Return the user and system seconds of one child process. Raises `CalledProcessError` if it fails."""
    before = os.times()
    subprocess.run(words, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def median_seconds(words: Sequence[str], passes: int) -> float:
    """Return the median CPU seconds of `passes` runs, after one run that may compile bytecode."""
    own_seconds(words)
    return statistics.median(own_seconds(words) for _ in range(passes))


def kafka_seconds(bootstrap: str) -> float | None:
    """Return the CPU seconds of Kafka's own description of the topic; None if Java or its jars are missing."""
    try:
        java = java_arguments()
    except KafkaUnavailable as missing:
        print(f"Apache Kafka's tool is not measured: {missing}")
        return None
    words = ("--bootstrap-server", bootstrap, "--describe", "--topic", TOPIC)
    return median_seconds((*java, "org.apache.kafka.tools.TopicCommand", *words), KAFKA_PASSES)


def main() -> int:
    """Measure the commands, and print a Markdown table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.programs.commands", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Kafka's tool")
    options = parser.parse_args()
    with odradek_server() as node:
        os.environ["ODRADEK_BOOTSTRAP"] = node.bootstrap
        client = (sys.executable, "-m", "odradek")
        subprocess.run(
            (*client, "topic", "create", TOPIC, "--partitions", "2"), check=True, capture_output=True
        )
        bare = median_seconds((sys.executable, "-c", "pass"), options.passes)
        print(
            f"| command | CPU time, ms | ratio to an empty program ({bare * 1000:.0f} ms) |\n| --- | --- | --- |"
        )
        for words in COMMANDS:
            seconds = median_seconds((*client, *words), options.passes)
            print(f"| `{' '.join(words)}` | {seconds * 1000:.0f} | {seconds / bare:.1f}x |")
        if not options.no_kafka and (seconds := kafka_seconds(node.bootstrap) or 0.0):
            print(f"| Kafka's `TopicCommand --describe` | {seconds * 1000:.0f} | {seconds / bare:.1f}x |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
