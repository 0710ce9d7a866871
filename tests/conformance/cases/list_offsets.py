"""ListOffsets: offsets by timestamp, and by the special timestamps below zero."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.conformance.asking.batches import append, filled
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import END, V1, V2, in_state


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
        for epoch in (0, 1, -2):
            for timestamp in (-1, -2, 1_500):
                _list(talk, name, version, _at(timestamp, epoch=epoch))


@case("list_offsets as a replica and as a debugger")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "offsets-replica")
    for replica in (-2, 5):
        talk.ask(ListOffsetsRequest(replica, 0, [ListOffsetsTopic(name, [_at(-1)])], 1_000), 7)


@case("list_offsets at equal and falling timestamps")
def _(talk: Talk) -> None:
    name, _ = talk.topic("offsets-disorder", retention_ms="-1")
    for timestamp in (5_000, 1_000, 5_000, 3_000):
        append(talk, name, timestamp)
    for timestamp in (-3, 0, 1_000, 3_000, 5_000, 5_001, 5_002, 5_003):
        _list(talk, name, 7, _at(timestamp))


@case("list_offsets of nothing")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "offsets-nothing")
    for version in (1, 6, 11):
        talk.ask(ListOffsetsRequest(-1, 0, [], 1_000), version)
        _list(talk, name, version)


@case("list_offsets names a topic twice")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "offsets-twice", 2)
    for version in (1, 7, 11):
        topics = [ListOffsetsTopic(name, [_at(-1)]), ListOffsetsTopic(name, [_at(-2), _at(-1, 1)])]
        talk.ask(ListOffsetsRequest(-1, 0, topics, 1_000), version)


def _isolated(talk: Talk, *, isolation: int) -> None:
    name, _ = filled(talk, f"offsets-isolated{isolation}")
    for timestamp in (-1, -2, -3, 2_000):
        _list(talk, name, 8, _at(timestamp), isolation=isolation)


for _isolation in (0, 1, 2, -1, 127):
    case(f"list_offsets at isolation level {_isolation}")(partial(_isolated, isolation=_isolation))


def _extreme(talk: Talk, *, timestamp: int) -> None:
    name, _ = filled(talk, f"offsets-extreme{timestamp}")
    for version in (1, 7, 11):
        _list(talk, name, version, _at(timestamp))


for _timestamp in (2**63 - 1, -(2**63), -8, 2**31):
    case(f"list_offsets at {_timestamp}")(partial(_extreme, timestamp=_timestamp))
for _name in ("", "x" * 250, ".", "__cluster_metadata"):
    case(f"list_offsets of the topic {_name[:20] or 'without a name'}")(
        partial(lambda talk, name: _list(talk, name, 7, _at(-1)), name=_name)
    )


def _of_transactions(talk: Talk, *, client: int, version: int) -> None:
    """Check that the latest offset under read_committed is the last stable offset."""
    producer = in_state(talk, f"lo-{client}-{version}", "ongoing", client)
    for is_commit in (True, False):
        for isolation in (0, 1):
            for timestamp in (-1, -2, -3, 0, 1_000, 1_001):
                _list(talk, producer.topic, version, _at(timestamp), isolation=isolation)
        answer = producer.ask(producer.end_request(is_commit), END[client])
        if client == V2:
            producer.learn(answer)
        for isolation in (0, 1):
            for timestamp in (-1, -2, 0):
                _list(talk, producer.topic, version, _at(timestamp), isolation=isolation)
        producer.begin()


for _client in (V1, V2):
    for _version in (2, 5, 7, 11):
        case(f"list_offsets v{_version} around a transaction of client {_client}")(
            partial(_of_transactions, client=_client, version=_version)
        )
