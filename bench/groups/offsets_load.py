"""Measures how long a coordinator needs to load a cleaned partition of `__consumer_offsets`, compared with Apache
Kafka's.

    python -m bench.groups.offsets_load                  # 10 million commits of 100,000 keys
    python -m bench.groups.offsets_load --commits 1000000 --without-kafka

Both servers get the same requests: 1,000 groups commit offsets of 100 partitions each, repeatedly, until the active
segment is almost full. When all finished segments are clean, the servers are restarted. The figure is the time from
the first answer of any kind to the first answer with a committed offset. Our node also logs the time of the load
alone.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from bench.disks.cleaner import active_base, clean_end
from bench.groups.members import wait_for_coordinator
from bench.instruments.tables import table
from bench.throughput.passes import create_topic
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from testkit.kafka_server import KafkaUnavailable, start_kafka
from testkit.odradek_server import launch_odradek, start_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawConnection

GROUPS = 1_000
PARTITIONS = 100
TOPIC = "committed"
OFFSETS_TOPIC = "__consumer_offsets"
COMMIT_VERSION = FETCH_VERSION = 8
AT_ONCE = 16
SEGMENT_BYTES = 100 << 20
FULL = 0.95
CLEAN_SECONDS_MAX = 300.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "0",
}


def commit(group: int, offset: int) -> OffsetCommitRequest:
    """Build a request that commits one offset in all partitions."""
    partitions = [OffsetCommitRequestPartition(index, offset, 0, "") for index in range(PARTITIONS)]
    return OffsetCommitRequest(
        f"group-{group:04d}", topics=[OffsetCommitRequestTopic(TOPIC, partitions=partitions)]
    )


def run_commits(bootstrap: str, random: Random, go_on: Callable[[int], bool]) -> int:
    """Send commits until `go_on` returns false, and return their number. `go_on` gets the number so far, after each
    hundred requests.
    """
    wire = RawConnection(bootstrap)
    waiting: deque[None] = deque()
    commits = 0

    def settle() -> None:
        answer = wire.receive(OffsetCommitRequest, COMMIT_VERSION)
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        if codes != {ErrorCode.NONE}:
            raise RuntimeError(f"OffsetCommit returned the error codes {sorted(codes)}")
        waiting.popleft()

    while go_on(commits):
        for _ in range(100):
            if len(waiting) == AT_ONCE:
                settle()
            wire.send(commit(random.randrange(GROUPS), commits), COMMIT_VERSION)
            waiting.append(None)
            commits += PARTITIONS
    while waiting:
        settle()
    wire.socket.close()
    return commits


def fill(server: ServerProcess, data: Path, commits: int) -> int:
    """Write at least `commits` commits, and more until the active segment is almost full. Return their number."""
    create_topic(server.bootstrap, TOPIC, PARTITIONS)
    wait_for_coordinator(server.bootstrap)
    told_offset(server.bootstrap)
    directory = data / f"{OFFSETS_TOPIC}-0"

    def go_on(done: int) -> bool:
        return done < commits or max(directory.glob("*.log")).stat().st_size < FULL * SEGMENT_BYTES

    return run_commits(server.bootstrap, Random(1), go_on)


def wait_until_clean(data: Path) -> None:
    """Wait until all finished segments of `__consumer_offsets` are clean."""
    deadline = time.monotonic() + CLEAN_SECONDS_MAX
    while clean_end(data, OFFSETS_TOPIC) < active_base(data, OFFSETS_TOPIC):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{OFFSETS_TOPIC} is not clean after {CLEAN_SECONDS_MAX:g} s")
        time.sleep(0.1)


def told_offset(bootstrap: str) -> int:
    """Wait until the coordinator has loaded, and return a group's committed offset; -1 for none."""
    wire = RawConnection(bootstrap)
    topics = [OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("group-0001", topics=topics)])
    while True:
        wire.send(request, FETCH_VERSION)
        group = wire.receive(OffsetFetchRequest, FETCH_VERSION).groups[0]
        if not group.error_code:
            wire.socket.close()
            offset: int = group.topics[0].partitions[0].committed_offset
            return offset
        time.sleep(0.01)


def seconds_to_load(server: ServerProcess) -> float:
    """Measure the seconds from now until a server that has just started returns a committed offset."""
    began = time.perf_counter()
    if told_offset(server.bootstrap) < 0:
        raise RuntimeError(f"{server.name} has lost a group's committed offset in the restart")
    return time.perf_counter() - began


def measure(name: str, directory: Path, commits: int) -> list[str]:
    """Measure one server, and return its row of the table."""
    is_ours = name == "Odradek"
    start = start_odradek if is_ours else start_kafka
    server = start(directory, settings=SETTINGS)
    data = directory / "data"
    try:
        written = fill(server, data, commits)
        wait_until_clean(data)
        sizes = [path.stat().st_size for path in sorted((data / f"{OFFSETS_TOPIC}-0").glob("*.log"))]
        server.stop()
        server = (
            launch_odradek(directory / "server.properties")
            if is_ours
            else start_kafka(directory, settings=SETTINGS)
        )
        seconds = seconds_to_load(server)
        found = re.findall(r"event=groups\.loaded .*load_ms=(\d+)", server.log_path.read_text())
        alone = f"{int(found[-1]) / 1000:.2f}" if found else "-"
    finally:
        server.kill()
    return [
        name,
        f"{written:,}",
        f"{sum(sizes[:-1]) >> 20}",
        f"{sizes[-1] >> 20}",
        f"{seconds:.2f}",
        alone,
    ]


def main() -> int:
    """Measure both servers, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.groups.offsets_load", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--commits", type=int, default=10_000_000, help="smallest number of commits (default: 10,000,000)"
    )
    parser.add_argument("--without-kafka", action="store_true", help="do not measure Apache Kafka")
    options = parser.parse_args()
    rows = []
    for name in ("Odradek",) if options.without_kafka else ("Odradek", "Apache Kafka 4.3"):
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offsets-")))
            try:
                rows.append(measure(name, directory, options.commits))
            except KafkaUnavailable as reason:
                print(f"Apache Kafka is not measured: {reason}", file=sys.stderr)
    heading = ["", "commits", "MiB clean", "MiB active", "seconds until served", "load alone"]
    print(table(heading, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
