"""DeleteRecords: moves the beginning of a log."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.conformance.asking.batches import append, filled
from tests.conformance.asking.talk import Talk, case

EARLIEST, LATEST = -2, -1


def _delete(talk: Talk, name: str, *partitions: tuple[int, int], version: int = 2) -> None:
    asked = [DeleteRecordsPartition(*partition) for partition in partitions]
    talk.ask(DeleteRecordsRequest([DeleteRecordsTopic(name, asked)], 10_000), version)


def _look(talk: Talk, name: str) -> None:
    """Keep the first and the last offset of the log, and the records from its beginning."""
    for timestamp in (EARLIEST, LATEST, 2_000):
        asked = [ListOffsetsPartition(0, -1, timestamp)]
        talk.ask(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, asked)]), 7)
    for offset in (0, 4, 9):
        wanted = [FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)]
        talk.ask(FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(name, bytes(16), wanted)]), 11)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = filled(talk, f"dr{version}")
    _delete(talk, name, (0, 4), version=version)
    _look(talk, name)
    _delete(talk, name, (0, -1), version=version)
    _look(talk, name)
    append(talk, name, 4_000)
    _look(talk, name)


for _version in range(3):
    case(f"delete_records v{_version}")(partial(_versions, version=_version))


def _until(talk: Talk, *, offset: int) -> None:
    name, _ = filled(talk, f"dr-until{offset}")
    _delete(talk, name, (0, offset))
    _look(talk, name)


for _offset in (0, 1, 3, 8, 9, 10, -1, -2, 2**63 - 1, -(2**63)):
    case(f"delete_records before offset {_offset}")(partial(_until, offset=_offset))


@case("delete_records before what is gone already")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dr-again")
    for offset in (6, 6, 2, 0, 7):
        _delete(talk, name, (0, offset))
    _look(talk, name)


@case("delete_records of partitions and topics that are not there")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dr-missing")
    _delete(talk, name, (0, 2), (1, 2), (-1, 0))
    _delete(talk, talk.name("dr-unknown"), (0, 0))
    _delete(talk, "bad name", (0, 0))
    _delete(talk, "", (0, 0))
    _look(talk, name)


@case("delete_records of nothing")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dr-nothing")
    for version in (0, 2):
        talk.ask(DeleteRecordsRequest([], 10_000), version)
        _delete(talk, name, version=version)


@case("delete_records names a partition twice")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dr-twice")
    _delete(talk, name, (0, 2), (0, 5))
    twice = [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, offset)]) for offset in (6, 7)]
    talk.ask(DeleteRecordsRequest(twice, 10_000), 2)
    _look(talk, name)


@case("delete_records of an empty partition")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dr-empty")
    for offset in (0, -1, 1):
        _delete(talk, name, (0, offset))


def _policy(talk: Talk, *, policy: str) -> None:
    name, _ = talk.topic("dr-" + policy.replace(",", "-"), cleanup_policy=policy)
    append(talk, name, 1_000)
    _delete(talk, name, (0, 2))
    _look(talk, name)


for _policy_name in ("delete", "compact", "compact,delete"):
    case(f"delete_records where the policy is {_policy_name}")(partial(_policy, policy=_policy_name))


@case("delete_records of internal topics")
def _(talk: Talk) -> None:
    _delete(talk, "__consumer_offsets", (99, 0))
    _delete(talk, "__cluster_metadata", (0, 0))


@case("delete_records without time")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dr-late")
    topics = [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 3)])]
    for timeout_ms in (0, -1):
        talk.ask(DeleteRecordsRequest(topics, timeout_ms), 2)
