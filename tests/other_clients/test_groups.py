"""Consumer groups with the three client libraries: members join, leave, die and return, seek, pause and commit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.processes import command_prefix
from tests.node_process import RunningNode
from tests.other_clients.drivers import Driver, Sent

PARTITIONS = 4
ALL = list(range(PARTITIONS))
SESSION_MS = 6_000
WAIT_SECONDS = 40.0
RESTART_SESSION_MS = 120_000
"""The session timeout of members that return in time. No restart in these tests takes so long, even on a slow
machine."""
ROOT = Path(__file__).resolve().parent.parent.parent

Start = Callable[..., "Process"]


class Process:
    """A member in a process of its own, and the events that it has printed."""

    def __init__(self, library: str, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        command = [sys.executable, "-m", "tests.other_clients.group_member", library, bootstrap, group, topic]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process, and closed with it
        self._child = subprocess.Popen(
            [*command_prefix(), *command, json.dumps({"session_ms": SESSION_MS, **options})],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        self._ended = False
        self._changed = threading.Condition()
        self.assignments: list[list[int]] = []
        self.records: list[tuple[int, int, str]] = []
        self._done: dict[str, Any] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            kind, *event = json.loads(line)
            with self._changed:
                if kind == "assigned":
                    self.assignments.append(event[0])
                elif kind == "record":
                    self.records.append((event[0], event[1], event[2]))
                else:
                    self._done[event[0]] = event[1]
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait for an event of the member."""
        with self._changed:
            self._changed.wait_for(lambda: until() or self._ended, WAIT_SECONDS)
            assert until(), f"no {what}; told: {self.assignments}; ended: {self._ended}; {self._last_words()}"

    def _last_words(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read()[-3000:].decode(errors="replace")

    def wait_assigned(self, count: int) -> list[int]:
        """Wait until the member has `count` partitions. Return them."""
        self.wait(lambda: len(self.assigned) == count, f"assignment of {count}")
        return self.assigned

    @property
    def assigned(self) -> list[int]:
        return self.assignments[-1] if self.assignments else []

    def do(self, name: str, *arguments: int) -> Any:
        """Make the member carry out a command. Return the result."""
        assert self._child.stdin is not None
        self._done.pop(name, None)
        self._child.stdin.write(" ".join([name, *map(str, arguments)]) + "\n")
        self._child.stdin.flush()
        self.wait(lambda: name in self._done, name)
        return self._done[name]

    def wait_records(self, count: int) -> None:
        self.wait(lambda: len(self.records) >= count, f"{count} records of {len(self.records)}")

    def kill(self) -> None:
        """Kill the member by SIGKILL."""
        self._child.kill()
        self._child.wait()
        self._complaints.close()


@pytest.fixture
def start(driver: Driver, node: RunningNode) -> Iterator[Start]:
    """Return a function that starts members. Those that still run at the end are killed."""
    started: list[Process] = []

    def start_one(group: str, topic: str, **options: Any) -> Process:
        started.append(Process(driver.name, node.bootstrap, group, topic, **options))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


def fill(driver: Driver, topic: str, values: list[str]) -> None:
    """Produce the values to the partitions in turn."""
    records = [Sent(value.encode(), partition=at % PARTITIONS) for at, value in enumerate(values)]
    driver.produce(topic, records, codec="none", idempotent=False, acks=-1)


def test_members_share_a_topic(driver: Driver, start: Start, fresh_topic: Callable[[str], str]) -> None:
    """One member reads everything, two share the partitions, and when one leaves, the other takes over all."""
    topic = fresh_topic("shared")
    driver.create_topic(topic, PARTITIONS)
    first = start(topic, topic)
    assert first.wait_assigned(4) == ALL
    second = start(topic, topic)
    half = second.wait_assigned(2)
    assert sorted(half + first.wait_assigned(2)) == ALL
    fill(driver, topic, [f"v{number}" for number in range(40)])
    first.wait_records(20)
    second.wait_records(20)
    assert sorted({partition for partition, _, _ in second.records}) == half
    values = [value for _, _, value in first.records + second.records]
    assert sorted(values) == sorted(f"v{number}" for number in range(40))
    second.do("commit")
    second.do("close")
    assert first.wait_assigned(4) == ALL


def test_a_killed_member_is_replaced(driver: Driver, start: Start, fresh_topic: Callable[[str], str]) -> None:
    """After `session.timeout.ms` without heartbeats, the others get a member's partitions and go on at its committed
    offsets."""
    topic = fresh_topic("killed")
    driver.create_topic(topic, PARTITIONS)
    first = start(topic, topic)
    first.wait_assigned(4)
    second = start(topic, topic)
    second.wait_assigned(2)
    first.wait_assigned(2)
    fill(driver, topic, [f"v{number}" for number in range(8)])
    first.wait_records(4)
    second.wait_records(4)
    first.do("commit")
    second.do("commit")
    second.kill()
    assert first.wait_assigned(4) == ALL
    first.records.clear()
    fill(driver, topic, [f"w{number}" for number in range(8)])
    first.wait_records(8)
    assert sorted(value for _, _, value in first.records) == [f"w{number}" for number in range(8)]


def test_a_static_member_comes_back(driver: Driver, start: Start, fresh_topic: Callable[[str], str]) -> None:
    """KIP-345: a static member that is killed and returns in its session gets its partitions back without a
    rebalance."""
    topic = fresh_topic("static")
    driver.create_topic(topic, PARTITIONS)
    first = start(topic, topic, instance="one", session_ms=RESTART_SESSION_MS)
    first.wait_assigned(4)
    second = start(topic, topic, instance="two", session_ms=RESTART_SESSION_MS)
    half = second.wait_assigned(2)
    first.wait_assigned(2)
    before = list(first.assignments)
    second.kill()
    again = start(topic, topic, instance="two", session_ms=RESTART_SESSION_MS)
    assert again.wait_assigned(2) == half
    fill(driver, topic, [f"v{number}" for number in range(8)])
    first.wait_records(4)
    again.wait_records(4)
    assert first.assignments == before


def test_committed_offsets_outlive_a_member(
    driver: Driver, start: Start, fresh_topic: Callable[[str], str]
) -> None:
    """The next member goes on at the last committed offset, even if more was read."""
    topic = fresh_topic("committed")
    driver.create_topic(topic, 1)
    driver.produce(topic, [Sent(b"a"), Sent(b"b")], codec="none", idempotent=False, acks=-1)
    first = start(topic, topic)
    first.wait_records(2)
    assert first.do("committed", 0) is None
    first.do("commit")
    assert first.do("committed", 0) == 2
    driver.produce(topic, [Sent(b"c"), Sent(b"d")], codec="none", idempotent=False, acks=-1)
    first.wait_records(4)
    first.do("close")
    second = start(topic, topic)
    second.wait_records(2)
    assert second.records == [(0, 2, "c"), (0, 3, "d")]


def test_seek_and_pause(driver: Driver, start: Start, fresh_topic: Callable[[str], str]) -> None:
    """A paused partition returns no records while others do. After a seek a partition goes on at the new offset."""
    topic = fresh_topic("seek")
    driver.create_topic(topic, PARTITIONS)
    fill(driver, topic, [f"v{number}" for number in range(8)])
    member = start(topic, topic)
    member.wait_records(8)
    member.do("pause", 0)
    member.records.clear()
    fill(driver, topic, [f"w{number}" for number in range(8)])
    member.wait_records(6)
    assert sorted(value for _, _, value in member.records) == ["w1", "w2", "w3", "w5", "w6", "w7"]
    member.do("resume", 0)
    member.wait_records(8)
    member.records.clear()
    member.do("seek", 2, 1)
    member.wait_records(3)
    assert member.records == [(2, 1, "v6"), (2, 2, "w2"), (2, 3, "w6")]


def test_a_cooperative_rebalance_lets_members_keep_what_they_have(
    driver: Driver, start: Start, fresh_topic: Callable[[str], str]
) -> None:
    """KIP-429: in a cooperative rebalance a member gives up only the partitions that move."""
    if driver.name != "confluent-kafka":
        pytest.skip(f"{driver.name} has no cooperative assignor")
    topic = fresh_topic("cooperative")
    driver.create_topic(topic, PARTITIONS)
    first = start(topic, topic, assignor="cooperative-sticky")
    first.wait_assigned(4)
    second = start(topic, topic, assignor="cooperative-sticky")
    second.wait_assigned(2)
    first.wait_assigned(2)
    assert first.assignments[0] == ALL
    assert all(len(each) >= 2 for each in first.assignments)
    second.do("close")
    assert first.wait_assigned(4) == ALL
