"""A transaction coordinator's disk is full or read-only: clients retry, and open transactions later end correctly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import confluent_kafka
import pytest

from odradek import Client, Consumer, Producer
from odradek.client.admin import NewTopic
from odradek.client.errors import ClientError
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from testkit.odradek_server import launch_odradek, start_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient
from tests.cluster.disks.real_disks import RealDisk, real_disk
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.long]

STATE_PARTITIONS = 4
SETTINGS = {
    "log.flush.interval.messages": "1",
    "odradek.disk.full.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
}
RETRIED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


@attrs.define
class Place:
    """A node with a sound and a troubled disk. The topic is on the first, transaction coordinators are on both."""

    server: ServerProcess
    sound: RealDisk
    disk: RealDisk
    folder: Path
    """The node's folder with its properties file."""
    partition: int = 0
    """The partition of topic `t` that lies on the sound disk."""

    @property
    def at(self) -> str:
        return self.server.bootstrap

    def prepare(self) -> None:
        with Client(self.at) as client:
            (created,) = client.admin.create_topics([NewTopic("t", 4, 1)])
            assert created.error is None, created.error
        with Producer(bootstrap_servers=self.at, transactional_id="first") as producer:
            producer.init_transactions()
        logs = self.sound.path / "data"
        self.partition = until(
            "a log on the sound disk", lambda: next((int(each.name[2:]) for each in logs.glob("t-*")), None)
        )

    def name(self, stem: str) -> str:
        """Return a transactional id that begins with `stem` and whose coordinator is on the troubled disk."""
        coordinator = min(self.on_disk())
        names = (f"{stem}{number}" for number in range(100))
        return next(name for name in names if coordinator_partition(name, STATE_PARTITIONS) == coordinator)

    def on_disk(self) -> set[int]:
        """Return the partitions of `__transaction_state` on the troubled disk."""
        logs = (self.disk.path / "data").glob("__transaction_state-*")
        return {int(each.name.rpartition("-")[2]) for each in logs}

    def begin_code(self, name: str) -> ErrorCode:
        """Send InitProducerId for the id; return the error code."""
        with RawClient(self.at) as client:
            answer: Any = client.request(InitProducerIdRequest(name, 60_000), 4)
        return ErrorCode(answer.error_code)

    def refuses(self) -> bool | None:
        """True if the troubled coordinator refuses a new producer; else None."""
        code = self.begin_code(self.name("a"))
        assert code in {ErrorCode.NONE, *RETRIED}, code.name
        return code in RETRIED or None

    def use_up_last_block(self) -> None:
        """Begin producers with ever shorter ids until even the smallest record finds no room."""
        for stem in ("asker" * 800, "asker" * 50, "a"):
            name = self.name(stem)
            while True:
                until("a coordinator that has read its log", lambda: self.has_loaded() or None)
                if self.begin_code(name) is not ErrorCode.NONE:
                    break

    def has_loaded(self) -> bool:
        with RawClient(self.at) as client:
            answer: Any = client.request(DescribeTransactionsRequest([self.name("a")]), 0)
        code = answer.transaction_states[0].error_code
        return code in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    def serves(self) -> bool | None:
        return self.begin_code(self.name("a")) is ErrorCode.NONE or None

    def values(self, isolation_level: str) -> list[bytes]:
        with Consumer(bootstrap_servers=self.at, isolation_level=isolation_level) as consumer:
            keys = [("t", self.partition)]
            consumer.assign(keys)
            consumer.seek_to_beginning(*keys)
            (end,) = consumer.end_offsets(keys).values()
            found: list[bytes] = []
            while consumer.position(keys[0]) < end:
                found += [each.value or b"" for each in consumer.poll(0.5)]
            return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        # Both disks have the same size, so partitions are spread between them.
        sound, disk = (stack.enter_context(real_disk(tmp_path / name, "ext4")) for name in ("sound", "bad"))
        paths = f"{sound.path / 'data'},{disk.path / 'data'}"
        settings = {"log.dirs": paths, "metadata.log.dir": str(tmp_path / "metadata"), **SETTINGS}
        found = Place(start_odradek(tmp_path / "node", settings=settings), sound, disk, tmp_path / "node")
        stack.callback(lambda: found.server.kill())
        found.prepare()
        yield found


class Committing:
    """A confluent-kafka producer with an open transaction, which it can commit in a thread with retries."""

    def __init__(self, place: Place, stem: str, timeout_ms: int = 60_000) -> None:
        self.value = stem.encode()
        self.errors: list[str] = []
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": place.at,
                "transactional.id": place.name(stem),
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self.producer.init_transactions(PATIENCE_SECONDS)
        self.producer.begin_transaction()
        self.producer.produce("t", self.value, partition=place.partition)
        assert self.producer.flush(PATIENCE_SECONDS) == 0
        self.thread = threading.Thread(target=self._commit)

    def _commit(self) -> None:
        try:
            self.producer.commit_transaction(PATIENCE_SECONDS)
        except confluent_kafka.KafkaException as error:
            self.errors.append(error.args[0].str())

    def begin_commit(self) -> None:
        self.thread.start()

    def join(self) -> None:
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive(), "the commit is still running"
        assert not self.errors


def open_of_ours(place: Place, stem: str, **settings: Any) -> Producer:
    """Make our producer with an open transaction."""
    producer = Producer(bootstrap_servers=place.at, transactional_id=place.name(stem), **settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=stem.encode(), partition=place.partition).result(PATIENCE_SECONDS)
    return producer


def test_a_coordinator_without_room(place: Place) -> None:
    """While the coordinator has no room, clients get retriable errors. Later commits succeed and abandoned transactions
    time out."""
    theirs = Committing(place, "theirs")
    ours = open_of_ours(place, "ours", max_block_ms=2_000)
    abandoned = open_of_ours(place, "abandoned", transaction_timeout_ms=1_500)
    place.disk.fill()
    place.use_up_last_block()
    theirs.begin_commit()
    with pytest.raises(ClientError) as refused:
        ours.commit_transaction()
    assert type(refused.value).__name__ == "RequestTimedOut", "the error must allow a retry"
    assert place.refuses()
    assert place.values("read_committed") == []

    place.disk.empty()
    until("a coordinator", place.serves)
    theirs.join()
    ours.commit_transaction()
    expected = [b"theirs", b"ours"]
    until("the end of all", lambda: place.values("read_committed") == expected or None)
    until("no open transaction", lambda: is_settled(place) or None)
    assert sorted(place.values("read_uncommitted")) == [b"abandoned", b"ours", b"theirs"]
    ours.close()
    abandoned.close()
    with Producer(bootstrap_servers=place.at, transactional_id=place.name("abandoned")) as heir:
        heir.init_transactions()
        with heir.transaction():
            heir.send("t", value=b"heir", partition=place.partition)
    # A commit is acknowledged before its marker is in the log.
    until("the heir's record", lambda: place.values("read_committed") == [*expected, b"heir"] or None)


def is_settled(place: Place) -> bool:
    """True if no transaction is open: the last stable offset is the high watermark."""
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        with Consumer(bootstrap_servers=place.at, isolation_level=level) as consumer:
            ends += consumer.end_offsets([("t", place.partition)]).values()
    return ends[0] == ends[1]


def test_a_coordinator_whose_disk_turns_read_only(place: Place) -> None:
    """Transactional ids on a read-only disk wait, others work. After a repair and a restart the waiting commit
    succeeds."""
    theirs = Committing(place, "theirs")
    # There is only one replica, so data lost by its disk is lost for good.
    place.disk.sync()
    place.disk.make_read_only()
    theirs.begin_commit()
    until("a refusal", place.refuses)
    with Producer(bootstrap_servers=place.at, transactional_id="first") as sound:
        if coordinator_partition("first", STATE_PARTITIONS) not in place.on_disk():
            sound.init_transactions()
            with sound.transaction():
                sound.send("t", value=b"sound", partition=place.partition)
    place.server.kill()
    place.disk.mount_again()
    place.server = launch_odradek(place.folder / "server.properties")
    theirs.join()
    until("a committed record", lambda: b"theirs" in place.values("read_committed") or None)
    until("no open transaction", lambda: is_settled(place) or None)
