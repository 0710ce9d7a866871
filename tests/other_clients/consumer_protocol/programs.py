"""Unmodified clients as processes: how each starts as a member of a group, and how to read the lines that it prints.

Our programs print one JSON list a line: `["assigned" or "revoked", PARTITIONS]`, `["record", PARTITION, OFFSET,
VALUE]`, `["refused", TEXT]` for a refused commit. On SIGTERM each program leaves its group.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from testkit.kafka_server import SHORT_LIVED, ensure_jars, java_command
from testkit.processes import command_prefix

__all__ = [
    "CONSOLE",
    "JAVA",
    "LIBRDKAFKA",
    "ODRADEK",
    "VERIFIABLE",
    "Kind",
    "Member",
    "Place",
    "Record",
    "our_event",
]

ROOT = Path(__file__).resolve().parents[3]
END_SECONDS = 60.0
SOURCE = Path(__file__).with_name("JavaMember.java")
CONSOLE_LINE = re.compile(r"Partition:(\d+)\tOffset:(\d+)\t(\d+)$")


@attrs.frozen
class Place:
    """Where a member works: the servers, its group and its topic."""

    bootstrap: str
    group: str
    topic: str


@attrs.frozen
class Record:
    """A record that a member has read."""

    partition: int
    offset: int
    value: str


@attrs.frozen
class Owned:
    """Partitions that a member was assigned (`gained`) or has given up."""

    partitions: frozenset[int]
    gained: bool


Event = Record | Owned | None


@attrs.frozen
class Kind:
    """A client program."""

    name: str
    command: Callable[[Place], Sequence[str]]
    event: Callable[[str], Event]
    """Reads one line of the program's output as an event."""
    says_what_it_owns: bool = True


class Member:
    """One running program, and the events that it has printed."""

    def __init__(self, kind: Kind, place: Place, directory: Path, number: int) -> None:
        self.kind = kind
        self.name = f"{kind.name} {number}"
        self.records: list[Record] = []
        self.owned: set[int] = set()
        self._complaints = directory / f"{kind.name}-{number}.log"
        with self._complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                [*command_prefix(), *kind.command(place)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                match self.kind.event(line.rstrip("\n")):
                    case Record() as record:
                        self.records.append(record)
                    case Owned(partitions, gained):
                        self.owned = self.owned | partitions if gained else self.owned - partitions
                    case None:
                        pass

    @property
    def values(self) -> set[str]:
        """Return the values of all records that the program has read."""
        return {each.value for each in list(self.records)}

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stall(self) -> None:
        """Stop the program by SIGSTOP. Its connections stay open, but it sends nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue the program by SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Make the member leave its group, and wait for the end of its process."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)

    def kill(self) -> None:
        """End the program by SIGKILL if it still runs."""
        self._process.kill()
        self._process.wait()
        self._reader.join(END_SECONDS)

    def last_words(self) -> str:
        """Return the end of the program's standard error."""
        return f"{self.name}: " + self._complaints.read_text(errors="replace")[-1500:]


def our_event(line: str) -> Event:
    """Read an event from a line of one of our programs."""
    kind, *rest = json.loads(line)
    if kind == "record":
        return Record(*rest)
    if kind in ("assigned", "revoked"):
        return Owned(frozenset(rest[0]), gained=kind == "assigned")
    return None


def _verifiable_event(line: str) -> Event:
    """Read an event from a line of Kafka's verifiable consumer."""
    event = json.loads(line)
    match event["name"]:
        case "record_data":
            return Record(event["partition"], event["offset"], event["value"])
        case "partitions_assigned" | "partitions_revoked":
            partitions = frozenset(each["partition"] for each in event["partitions"])
            return Owned(partitions, gained=event["name"] == "partitions_assigned")
    return None


def _console_event(line: str) -> Event:
    """Read an event from a line of Kafka's console consumer, which prints nothing but records."""
    found = CONSOLE_LINE.match(line)
    return None if found is None else Record(int(found[1]), int(found[2]), found[3])


def _java(*words: str) -> list[str]:
    return [java_command(), *SHORT_LIVED, "-cp", f"{ensure_jars()}/*", *words]


def _librdkafka(place: Place) -> list[str]:
    module = "tests.other_clients.consumer_protocol.librdkafka_member"
    return [sys.executable, "-m", module, place.bootstrap, place.group, place.topic]


def _odradek(place: Place) -> list[str]:
    module = "tests.other_clients.consumer_protocol.odradek_member"
    return [sys.executable, "-m", module, place.bootstrap, place.group, place.topic]


def _verifiable(place: Place) -> list[str]:
    where = ("--bootstrap-server", place.bootstrap, "--group-id", place.group, "--topic", place.topic)
    return _java(
        "org.apache.kafka.tools.VerifiableConsumer", *where, "--group-protocol", "consumer", "--verbose"
    )


def _console(place: Place) -> list[str]:
    where = ("--bootstrap-server", place.bootstrap, "--group", place.group, "--topic", place.topic)
    settings = ("group.protocol=consumer", "auto.offset.reset=earliest", "auto.commit.interval.ms=500")
    prints = ("print.partition=true", "print.offset=true")
    return _java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *where,
        *(word for each in settings for word in ("--command-property", each)),
        *(word for each in prints for word in ("--formatter-property", each)),
    )


def _java_member(place: Place) -> list[str]:
    return _java(str(SOURCE), place.bootstrap, place.group, place.topic)


LIBRDKAFKA = Kind("librdkafka", _librdkafka, our_event)
ODRADEK = Kind("odradek", _odradek, our_event)
"""Our own client. It is no client of others, but their scenario shows it on our nodes and on Apache Kafka's."""
VERIFIABLE = Kind("verifiable-consumer", _verifiable, _verifiable_event)
CONSOLE = Kind("console-consumer", _console, _console_event, says_what_it_owns=False)
JAVA = Kind("java", _java_member, our_event)
"""KafkaConsumer with a SubscriptionPattern. `java` compiles the program as it starts, so it needs a JDK."""
