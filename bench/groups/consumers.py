"""Compares groups of the consumer protocol (KIP-848) with Kafka's: a large assignment, a heartbeat, 1,000 groups
after kill -9.

    python -m bench.groups.consumers [--json FILE] [--quick] [--without-kafka]

* **Target.** 500 members join a group that reads 5,000 partitions; their heartbeats share a few connections. The
  figures are the seconds from the last join until the target assignment of the newest epoch is computed, and until
  all members have it. `group.consumer.assignment.interval.ms` is one second on both servers.
* **Newcomer.** One more member joins this group, after the interval has passed. The figure is the time in ms from its
  first heartbeat until a heartbeat has the epoch of the new target assignment. It is the median of several newcomers.
* **Heartbeat.** CPU of the server for a heartbeat without changes, minus the CPU for ApiVersions on the same
  connections. Many are pipelined over 16 connections.
* **Restore.** A server with 1,000 groups of 10 members each is killed (kill -9). The figures are the seconds until all groups are described
  with all their members: from the start of the process, and from its first answer.

The servers run one after the other. Only the ratio is meaningful.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from bench.groups.members import wait_for_coordinator
from bench.groups.pipelines import pipelined_cpu
from bench.instruments.tables import table
from bench.throughput.passes import create_topic
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from odradek.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.structure import Message
from testkit.kafka_server import KafkaUnavailable, start_kafka
from testkit.odradek_server import launch_odradek, start_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawConnection, connect, frame

TOPICS, PARTITIONS_OF_EACH = 50, 100
MEMBERS = 500
NEWCOMERS = 5
GROUPS, MEMBERS_OF_EACH = 1_000, 10
GROUPS_AT_ONCE = 100
HEARTBEAT_VERSION, DESCRIBE_VERSION, API_VERSION = 1, 1, 3
REBALANCE_MS = 60_000
WAIT_SECONDS_MAX = 120.0
WIRES, DEPTH = 16, 8
INTERVAL_SECONDS = 1.0
SETTINGS = {
    "offsets.topic.num.partitions": "10",
    "offsets.topic.replication.factor": "1",
    "group.consumer.assignment.interval.ms": str(int(INTERVAL_SECONDS * 1e3)),
}


FIND_VERSION = 4
STARTING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
"""Errors of a coordinator that is not ready yet. A member that receives such an error joins again."""


@attrs.define
class BenchMember:
    """A group member: its epoch and its partitions. `says` is True if the next heartbeat reports these partitions."""

    group: str
    member_id: str
    topics: Sequence[str]
    epoch: int = 0
    has: list[TopicPartitions] = attrs.Factory(list)
    says: bool = True

    def request(self) -> ConsumerGroupHeartbeatRequest:
        joins = self.epoch == 0
        return ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            self.epoch,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=list(self.topics) if joins else None,
            topic_partitions=[] if joins else self.has if self.says else None,
        )

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.error_code in STARTING and not self.epoch:
            return
        if answer.error_code:
            raise RuntimeError(f"a heartbeat of {self.group} returned {ErrorCode(answer.error_code).name}")
        self.epoch, self.says = answer.member_epoch, False
        if answer.assignment is not None:
            self.has, self.says = answer.assignment.topic_partitions, True


def beat_all(wire: RawConnection, members: Sequence[BenchMember], at_once: int = 50) -> None:
    """Send a heartbeat of each member, `at_once` at a time, and process the answers."""
    for at in range(0, len(members), at_once):
        some = members[at : at + at_once]
        for member in some:
            wire.send(member.request(), HEARTBEAT_VERSION)
        for member in some:
            member.take(wire.receive(ConsumerGroupHeartbeatRequest, HEARTBEAT_VERSION))


def described(wire: RawConnection, groups: Sequence[str]) -> list[DescribedGroup]:
    """Return the descriptions of groups."""
    wire.send(ConsumerGroupDescribeRequest(list(groups)), DESCRIBE_VERSION)
    found: list[DescribedGroup] = wire.receive(ConsumerGroupDescribeRequest, DESCRIBE_VERSION).groups
    return found


def wait_for(what: str, is_so: Callable[[], bool]) -> float:
    """Call `is_so` repeatedly until it returns true; return the seconds that this took. Raises `TimeoutError` with the
    text `what`.
    """
    began = time.perf_counter()
    while not is_so():
        if time.perf_counter() - began > WAIT_SECONDS_MAX:
            raise TimeoutError(what)
    return time.perf_counter() - began


def measure_target(server: ServerProcess, members: int) -> tuple[float, float, float]:
    """Return the seconds until the newest target assignment is computed, and until all members have it. The third
    value is the milliseconds until a target assignment with a newcomer is computed.
    """
    topics = [f"target-{index}" for index in range(TOPICS)]
    for name in topics:
        create_topic(server.bootstrap, name, PARTITIONS_OF_EACH)
    wire = RawConnection(server.bootstrap)
    group = [BenchMember("target", f"member-{index:04d}", topics) for index in range(members)]
    beat_all(wire, group)
    began = time.perf_counter()

    def has_target() -> bool:
        beat_all(wire, group[:1])
        (found,) = described(wire, ["target"])
        return found.assignment_epoch == found.group_epoch

    def has_all() -> bool:
        beat_all(wire, group)
        return (
            sum(len(topic.partitions) for each in group for topic in each.has) == TOPICS * PARTITIONS_OF_EACH
        )

    wait_for("the target is not computed", has_target)
    target_seconds = time.perf_counter() - began
    wait_for("the members do not get their share", has_all)
    share_seconds = time.perf_counter() - began
    newcomer_ms = statistics.median(measure_newcomer(wire, group, number) for number in range(NEWCOMERS))
    wire.socket.close()
    return target_seconds, share_seconds, newcomer_ms


def measure_newcomer(wire: RawConnection, group: list[BenchMember], number: int) -> float:
    """Let a member join once the assignment interval has passed. Return the milliseconds until the target assignment
    with this member is computed.
    """
    passed = time.perf_counter() + INTERVAL_SECONDS
    while time.perf_counter() < passed:
        beat_all(wire, group)
    (before,) = described(wire, [group[0].group])
    newcomer = BenchMember(group[0].group, f"newcomer-{number}", group[0].topics)
    began = time.perf_counter()

    def has_new_epoch() -> bool:
        beat_all(wire, [newcomer])
        return newcomer.epoch > before.group_epoch

    wait_for("the target with a newcomer is not computed", has_new_epoch)
    found = (time.perf_counter() - began) * 1e3
    group.append(newcomer)
    return found


def measure_cpu(server: ServerProcess, request: Message, version: int, seconds: float) -> float:
    """Return the server's CPU microseconds for one request of this kind."""
    frames = bytes(frame(request, version)) * DEPTH
    wires = [connect(server.bootstrap) for _ in range(WIRES)]
    wires[0].sendall(frames[: len(frames) // DEPTH])
    size = int.from_bytes(wires[0].recv(4, 0x100))
    wires[0].recv(size, 0x100)
    answer_bytes = (size + 4) * DEPTH
    return pipelined_cpu(server, wires, frames, answer_bytes, DEPTH, seconds)


def measure_heartbeat(server: ServerProcess, seconds: float) -> float:
    """Return the CPU microseconds of a heartbeat minus the CPU microseconds of an ApiVersions request."""
    create_topic(server.bootstrap, "beaten", 4)
    wire = RawConnection(server.bootstrap)
    member = BenchMember("beaten", "member", ["beaten"])

    def is_quiet() -> bool:
        # The first FindCoordinator makes the server create `__consumer_offsets`.
        wire.send(FindCoordinatorRequest("", 0, [member.group]), FIND_VERSION)
        wire.receive(FindCoordinatorRequest, FIND_VERSION)
        beat_all(wire, [member])
        return bool(member.has) and not member.says

    wait_for("the only member gets nothing", is_quiet)
    base = measure_cpu(server, ApiVersionsRequest("bench", "1"), API_VERSION, seconds)
    found = measure_cpu(server, member.request(), HEARTBEAT_VERSION, seconds) - base
    wire.socket.close()
    return found


def fill(server: ServerProcess, groups: Sequence[str]) -> None:
    """Create the groups: let all their members join."""
    create_topic(server.bootstrap, "restored", MEMBERS_OF_EACH)
    wire = RawConnection(server.bootstrap)
    members = [
        BenchMember(group, f"{group}-{index}", ["restored"])
        for group in groups
        for index in range(MEMBERS_OF_EACH)
    ]
    beat_all(wire, members)
    wire.socket.close()


def wait_until_restored(bootstrap: str, groups: Sequence[str]) -> float:
    """Return the seconds until all groups are described with all their members."""
    wire = RawConnection(bootstrap)

    def are_all_there() -> bool:
        for at in range(0, len(groups), GROUPS_AT_ONCE):
            for each in described(wire, groups[at : at + GROUPS_AT_ONCE]):
                if each.error_code:
                    return False
                if len(each.members) != MEMBERS_OF_EACH:
                    raise RuntimeError(
                        f"{each.group_id} has {len(each.members)} members after the restart, not {MEMBERS_OF_EACH}"
                    )
        return True

    seconds = wait_for("groups are not restored", are_all_there)
    wire.socket.close()
    return seconds


def measure(name: str, directory: Path, *, quick: bool) -> dict[str, float]:
    """Measure one server, and return its figures by name."""
    is_ours = name == "Odradek"
    start = start_odradek if is_ours else start_kafka
    server = start(directory, settings=SETTINGS)
    try:
        wait_for_coordinator(server.bootstrap)
        heartbeat_us = measure_heartbeat(server, 1.0 if quick else 4.0)
        target_seconds, share_seconds, newcomer_ms = measure_target(server, MEMBERS)
        groups = [f"group-{number}" for number in range(GROUPS // 5 if quick else GROUPS)]
        fill(server, groups)
        wait_until_restored(server.bootstrap, groups)
        server.kill()
        began = time.perf_counter()
        if is_ours:
            server = launch_odradek(directory / "server.properties")
        else:
            server = start_kafka(directory, settings=SETTINGS)
        restored_seconds = wait_until_restored(server.bootstrap, groups)
        return {
            "heartbeat_us": heartbeat_us,
            "target_seconds": target_seconds,
            "share_seconds": share_seconds,
            "newcomer_ms": newcomer_ms,
            "restored_seconds": restored_seconds,
            "since_start_seconds": time.perf_counter() - began,
        }
    finally:
        server.kill()


ROWS = {
    "heartbeat_us": "CPU of a heartbeat above an ApiVersions, us",
    "target_seconds": f"{MEMBERS} members, {TOPICS * PARTITIONS_OF_EACH} partitions: target, s",
    "share_seconds": "... until all have their share, s",
    "newcomer_ms": "... target with a newcomer, after the interval, ms",
    "restored_seconds": "groups of 10 after kill -9: served, s",
    "since_start_seconds": "... from the start of the process, s",
}


def main() -> int:
    """Measure both servers, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.groups.consumers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="make shorter runs with a fifth of the groups")
    parser.add_argument("--without-kafka", action="store_true", help="do not measure Apache Kafka")
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for name in ("Odradek",) if options.without_kafka else ("Odradek", "Apache Kafka 4.3"):
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="consumers-")))
            try:
                figures[name] = measure(name, directory, quick=options.quick)
            except KafkaUnavailable as reason:
                print(f"Apache Kafka is not measured: {reason}", file=sys.stderr)
    names = list(figures)
    rows = []
    for key, text in ROWS.items():
        values = [figures[name][key] for name in names]
        ratio = [f"{values[0] / values[1]:.2f}"] if len(values) > 1 and values[1] else []
        rows.append([text, *(f"{value:.2f}" for value in values), *ratio])
    print(table(["", *names, *(["ratio"] if len(names) > 1 else [])], rows))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
