"""Fetch: reads with and without sessions."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.conformance.asking.batches import append, filled
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import END, V1, V2, in_state

NOBODYS_ID = bytes(range(16))
MIB = 1 << 20


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
    """Make a fetch of one topic, without a session unless `fields` name one."""
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
    for epoch in (0, 1, 9, -2):
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


def _isolated(talk: Talk, *, isolation: int) -> None:
    name, topic_id = filled(talk, f"fetch-isolated{isolation}")
    for version in (4, 11, 18):
        talk.ask(fetch(name, topic_id, isolation_level=isolation), version)


for _isolation in (2, -1):
    case(f"fetch at isolation level {_isolation}")(partial(_isolated, isolation=_isolation))


@case("fetch names a partition and a topic twice")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "fetch-twice", 2)
    for version in (4, 12, 17):
        talk.ask(fetch(name, topic_id, partitions=(0, 0)), version)
        request = fetch(name, topic_id, partitions=(0,))
        request.topics += fetch(name, topic_id, partitions=(1,)).topics
        talk.ask(request, version)


@case("fetch from offsets at the limits")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "fetch-offsets")
    for offset in (2**63 - 1, -(2**63), -2):
        for version in (4, 17):
            talk.ask(fetch(name, topic_id, offset=offset), version)


@case("fetch of topics that cannot be")
def _(talk: Talk) -> None:
    for name in ("", "bad name", "x" * 250):
        talk.ask(fetch(name), 12)
    talk.ask(fetch("", bytes(16)), 17)
    talk.ask(fetch("__cluster_metadata"), 12)


@case("fetch waits a negative time, or for a negative size")
def _(talk: Talk) -> None:
    name, topic_id = filled(talk, "fetch-negative")
    talk.ask(fetch(name, topic_id, offset=9, max_wait_ms=-1), 17)
    talk.ask(fetch(name, topic_id, offset=9, min_bytes=-1, max_wait_ms=30), 17)


def _without_batches(response: Any) -> Any:
    """Show a batch by its offsets alone, since markers contain the present time."""
    for topic in response.responses:
        for answer in topic.partitions:
            found = [
                f"{header.base_offset}{'!' if header.is_control else ''}"
                for _, header in iter_batches(bytes(answer.records or b""))
            ]
            answer.records = " ".join(found).encode()
    return response


def _of_transactions(talk: Talk, *, client: int, version: int) -> None:
    """Read with read_committed. The fetch stops at the first open transaction and lists the aborted ones."""
    topic, topic_id = talk.topic(f"ft-{client}-{version}", 2)
    producers = [
        in_state(talk, f"ft-{client}-{version}-{number}", "ongoing", client, topic) for number in range(2)
    ]
    for producer, is_commit in zip(producers, (False, True), strict=True):
        for isolation in (0, 1):
            for offset in (0, 1, 2):
                talk.ask(
                    fetch(topic, topic_id, offset=offset, isolation_level=isolation),
                    version,
                    _without_batches,
                )
        producer.ask(producer.end_request(is_commit), END[client])
    for isolation in (0, 1):
        for offset in range(5):
            talk.ask(
                fetch(topic, topic_id, offset=offset, isolation_level=isolation), version, _without_batches
            )


for _client in (V1, V2):
    for _version in (4, 11, 12, 13, 17, 18):
        case(f"fetch v{_version} around transactions of client {_client}")(
            partial(_of_transactions, client=_client, version=_version)
        )
