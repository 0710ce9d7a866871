"""Fetch, ListOffsets, OffsetForLeaderEpoch: what is read back."""

from __future__ import annotations

from functools import partial

from tests.conformance.cases_produce import batch
from tests.conformance.talk import Talk, case
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

NOBODYS_ID = bytes(range(16))
MIB = 1 << 20


def filled(talk: Talk, stem: str, partitions: int = 1) -> tuple[str, bytes]:
    """A topic; its partition 0 holds three batches of three records at 1000, 2000 and 3000 ms."""
    name, topic_id = talk.topic(stem, partitions)
    for timestamp in (1_000, 2_000, 3_000):
        append(talk, name, timestamp)
    return name, topic_id


def append(talk: Talk, name: str, timestamp: int, partition: int = 0) -> None:
    """Three more records."""
    data = [PartitionProduceData(partition, batch(timestamp=timestamp))]
    talk.ask_silently(ProduceRequest(None, -1, 5_000, [TopicProduceData(name, bytes(16), data)]), 9)


def fetch(
    name: str,
    topic_id: bytes = bytes(16),
    *,
    offset: int = 0,
    partitions: tuple[int, ...] = (0,),
    leader_epoch: int = -1,
    fetched_epoch: int = -1,
    partition_bytes: int = MIB,
    **fields: int,
) -> FetchRequest:
    """A fetch of one topic, without a session unless `fields` name one."""
    asked = [
        FetchPartition(
            index,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=fetched_epoch,
            partition_max_bytes=partition_bytes,
        )
        for index in partitions
    ]
    limits = {"max_bytes": MIB, "max_wait_ms": 0, "min_bytes": 1, **fields}
    topics = [FetchTopic(name, topic_id, asked)] if asked else []
    return FetchRequest(topics=topics, **limits)  # type: ignore[arg-type]  # numbers all


def _versions(talk: Talk, *, version: int) -> None:
    name, topic_id = filled(talk, f"fetch{version}", 2)
    talk.ask(fetch(name, topic_id, partitions=(0, 1)), version)
    talk.ask(fetch(name, topic_id, offset=4), version)
    talk.ask(fetch(name, topic_id, offset=9), version)
    talk.ask(fetch(name, topic_id, offset=10), version)
    talk.ask(fetch(name, topic_id, offset=-1), version)
    talk.ask(fetch(name, topic_id, partitions=(7,)), version)
    talk.ask(fetch(talk.name("unknown"), NOBODYS_ID), version)
    talk.ask(fetch(name, topic_id, isolation_level=1), version)


for _version in range(4, 19):
    case(f"fetch v{_version}")(partial(_versions, version=_version))


def _leader_epochs(talk: Talk, *, version: int) -> None:
    name, topic_id = filled(talk, f"fetch-epochs{version}")
    for epoch in (0, 1, 9):
        talk.ask(fetch(name, topic_id, leader_epoch=epoch), version)


for _version in (9, 12, 16, 17):
    case(f"fetch v{_version} with leader epochs")(partial(_leader_epochs, version=_version))


@case("fetch diverges by its last fetched epoch")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "fetch-diverges")
    for version in (12, 17):
        for epoch, offset in ((0, 3), (0, 9), (0, 10), (1, 3), (7, 9), (0, 100), (-2, 3)):
            talk.ask(fetch(name, topic_id, offset=offset, fetched_epoch=epoch), version)


@case("fetch within limits of bytes")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "fetch-limits", 2)
    append(talk, name, 4_000, 1)
    for partition_bytes, bytes_max in (
        (1, MIB),
        (MIB, 1),
        (100, 100),
        (200, 200),
        (200, MIB),
        (230, 230),
        (300, 300),
        (0, MIB),
        (MIB, 0),
    ):
        talk.ask(fetch(name, topic_id, partition_bytes=partition_bytes, max_bytes=bytes_max), 13)
        talk.ask(
            fetch(name, topic_id, partitions=(0, 1), partition_bytes=partition_bytes, max_bytes=bytes_max), 13
        )
    talk.ask(fetch(name, topic_id, partition_bytes=-1), 13)
    talk.ask(fetch(name, topic_id, max_bytes=-1), 13)


@case("fetch waits for more and times out")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "fetch-waits")
    talk.ask(fetch(name, topic_id, offset=9, max_wait_ms=30), 13)
    talk.ask(fetch(name, topic_id, max_wait_ms=30, min_bytes=MIB), 13)
    talk.ask(fetch(name, topic_id, offset=9, max_wait_ms=0, min_bytes=0), 13)
    talk.ask(fetch(name, topic_id, offset=9, max_wait_ms=10_000, min_bytes=0), 13)
    talk.ask(fetch(name, topic_id, offset=9, max_wait_ms=30, partitions=(0, 7)), 13)


@case("fetch as a replica that is none")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "fetch-replica")
    request = fetch(name)
    request.replica_id = 5
    talk.ask(request, 12)


@case("fetch of nothing")
def _(talk: Talk) -> None:
    talk.ask(fetch("", partitions=()), 13)
    talk.ask(fetch("", partitions=(), session_epoch=0), 13)
    talk.ask(fetch("", partitions=(), max_wait_ms=30), 13)


def _session(talk: Talk, *, version: int) -> None:
    name, topic_id = filled(talk, f"session{version}", 3)

    def turn(
        session: int, epoch: int, partitions: tuple[int, ...] = (), offset: int = 0, forget: int = -1
    ) -> int:
        request = fetch(
            name, topic_id, offset=offset, partitions=partitions, session_id=session, session_epoch=epoch
        )
        if forget >= 0:
            request.forgotten_topics_data = [ForgottenTopic(name, topic_id, [forget])]
        response = talk.ask(request, version)
        return 0 if response is None else int(response.session_id)

    session = turn(0, 0, (0, 1))
    turn(session, 1)
    turn(session, 2, (0,), offset=9)
    turn(session, 3)
    append(talk, name, 4_000, 1)
    turn(session, 4)
    turn(session, 4)
    turn(session, 9)
    turn(session, 5, (2,))
    turn(session, 6, forget=1)
    turn(session, 7, (7,))
    turn(session, 8)
    turn(session, 9, (1,), offset=99)
    turn(session + 1, 1)
    turn(session, 10, forget=7)
    turn(session, -1, (0,))
    turn(session, 11)
    session = turn(0, 0, (2,))
    turn(session, 1, forget=2)
    turn(session, 2)
    session = turn(0, 0, (2,))
    replaced = turn(session, 0, (0,), offset=9)
    turn(session, 1)
    turn(replaced, 1)
    turn(0, 3)
    turn(0, -1, (0,), offset=9)


for _version in (7, 11, 12, 13, 17):
    case(f"fetch session v{_version}")(partial(_session, version=_version))


@case("fetch session that changes from names to ids")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "session-names")
    for first, second in ((12, 13), (13, 12)):
        started = talk.ask(fetch(name, topic_id, session_epoch=0), first)
        talk.ask(fetch(name, topic_id, partitions=(), session_id=started.session_id, session_epoch=1), second)
        talk.ask(fetch(name, topic_id, offset=3, session_id=started.session_id, session_epoch=1), second)


@case("fetch session with an id that nobody has")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "session-unknown-id")
    started = talk.ask(fetch(name, NOBODYS_ID, session_epoch=0), 13)
    talk.ask(fetch(name, topic_id, session_id=started.session_id, session_epoch=1), 13)
    talk.ask(fetch(name, topic_id, partitions=(), session_id=started.session_id, session_epoch=2), 13)


# -- ListOffsets -------------------------------------------------------------------------------------------------------


def _list(talk: Talk, name: str, version: int, *asked: ListOffsetsPartition, isolation: int = 0) -> None:
    talk.ask(ListOffsetsRequest(-1, isolation, [ListOffsetsTopic(name, list(asked))], 1_000), version)


def _at(timestamp: int, partition: int = 0, epoch: int = -1) -> ListOffsetsPartition:
    return ListOffsetsPartition(partition, epoch, timestamp)


TIMESTAMPS = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
    -7,
    -100,
    0,
    500,
    1_000,
    1_001,
    1_999,
    2_002,
    2_003,
    3_002,
    3_003,
    9_999,
)


def _list_offsets(talk: Talk, *, version: int) -> None:
    name, _ = filled(talk, f"offsets{version}", 2)
    for timestamp in TIMESTAMPS:
        _list(talk, name, version, _at(timestamp))
    for timestamp in (-1, -2, -3, 0):
        _list(talk, name, version, _at(timestamp, 1))
    if version >= 2:
        _list(talk, name, version, _at(-1), isolation=1)
        _list(talk, name, version, _at(1_500), isolation=1)


for _version in range(1, 12):
    case(f"list_offsets v{_version}")(partial(_list_offsets, version=_version))


@case("list_offsets of what is not there")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "offsets-missing")
    for version in (1, 7, 10):
        _list(talk, name, version, _at(-1, 7), _at(-2))
        _list(talk, talk.name("offsets-unknown"), version, _at(-1))
        _list(talk, "bad name", version, _at(-1))
        _list(talk, name, version, _at(-1), _at(-2))
        _list(talk, name, version, _at(-1), _at(-1, 5), _at(-1, 5))


@case("list_offsets with leader epochs")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "offsets-epochs")
    for version in (4, 10):
        for epoch in (0, 1):
            for timestamp in (-1, -2, 1_500):
                _list(talk, name, version, _at(timestamp, epoch=epoch))


@case("list_offsets as a replica and as a debugger")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "offsets-replica")
    for replica in (-2, 5):
        talk.ask(ListOffsetsRequest(replica, 0, [ListOffsetsTopic(name, [_at(-1)])], 1_000), 7)


@case("list_offsets at equal and falling timestamps")
def _(talk: Talk) -> None:
    name, _ = talk.topic("offsets-disorder")
    for timestamp in (5_000, 1_000, 5_000, 3_000):
        append(talk, name, timestamp)
    for timestamp in (-3, 0, 1_000, 3_000, 5_000, 5_001, 5_002, 5_003):
        _list(talk, name, 7, _at(timestamp))


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------------------


def _epochs(talk: Talk, *, version: int) -> None:
    name, _ = filled(talk, f"leader-epochs{version}", 2)
    for current, epoch, partition in (
        (-1, 0, 0),
        (0, 0, 0),
        (1, 0, 0),
        (-1, 1, 0),
        (-1, -1, 0),
        (-1, -2, 0),
        (-1, 0, 1),
        (-1, 5, 1),
        (-1, 0, 7),
    ):
        asked = [OffsetForLeaderPartition(partition, current, epoch)]
        talk.ask(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, asked)]), version)
    unknown = [OffsetForLeaderTopic(talk.name("leader-epochs-unknown"), [OffsetForLeaderPartition(0, -1, 0)])]
    talk.ask(OffsetForLeaderEpochRequest(-1, unknown), version)


for _version in range(2, 5):
    case(f"offset_for_leader_epoch v{_version}")(partial(_epochs, version=_version))
