"""Every message and version is compared with kio, an independent implementation generated from Kafka's own schemas."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import attrs
import pytest
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from odradek.wire import codec
from odradek.wire.schema.generate import snake_case
from odradek.wire.schema.table import messages
from odradek.wire.structure import ZERO_UUID, Message, Structure
from tests.wire.message_values import LONG, OWN_TAG_MIN, SHAPES, Shape, all_versions, contains, generated

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOT_IN_KIO = {"ProducerSnapshot", "QuorumStateData"}
"""File formats that kio lacks. It also lacks metadata and coordinator records."""


def kio_class(cls: type[Message], version: int) -> type[Any] | None:
    """Return kio's class for one of our classes and versions, or None."""
    base, suffix = cls.__name__, EntityType.data
    for ending, kind in (("Request", EntityType.request), ("Response", EntityType.response)):
        if base.endswith(ending):
            base, suffix = base.removesuffix(ending), kind
    if base.endswith("Header"):
        suffix = EntityType.header
    name = snake_case(base.replace("KRaft", "KxRaft")).replace("kx_raft", "k_raft")
    if suffix not in schema_name_map.get(name, {}).get(version, {}):
        return None
    return load_entity_schema(name, version, suffix)


def plain_name(name: str) -> str:
    """Convert a field name of kio: it drops units, splits KRaft, and adds an underscore to builtins' names."""
    return re.sub(r"(_ms|_)$", "", name).replace("k_raft", "kraft")


def kio_type(field: dataclasses.Field[Any]) -> str:
    """Return the wire type of a field for which kio uses None as a special value; empty for arrays."""
    return "" if "tuple" in str(field.type) else field.metadata.get("kafka_type", "")


def plain_kio(value: Any, wire_type: str = "") -> Any:
    """Convert kio's values to lists, bytes and numbers in Kafka's units."""
    if dataclasses.is_dataclass(value):
        return [
            (plain_name(field.name), plain_kio(getattr(value, field.name), kio_type(field)))
            for field in dataclasses.fields(value)
        ]
    match value:
        case tuple():
            return [ZERO_UUID if element is None else plain_kio(element) for element in value]
        case timedelta():
            return value // timedelta(milliseconds=1)
        case datetime():
            return (value - EPOCH) // timedelta(milliseconds=1)
        case UUID():
            return value.bytes
        case None if wire_type == "uuid":
            return ZERO_UUID
        case None if wire_type == "datetime_i64":
            return -1
        case memoryview() | bytearray():
            return bytes(value)
    return value


def plain_ours(value: Any, version: int) -> Any:
    """Convert our values to lists of the fields that are encoded at `version`."""
    if isinstance(value, Structure):
        return [
            (plain_name(field.name), plain_ours(getattr(value, field.name), version))
            for field in attrs.fields(type(value))
            if contains(field.metadata["kafka"].versions, version)
            and field.metadata["kafka"].tag < OWN_TAG_MIN
        ]
    if isinstance(value, list):
        return [plain_ours(element, version) for element in value]
    return value


def held_by_kio() -> Iterator[tuple[type[Message], int, type[Any]]]:
    """Yield our class, version and kio's class for all messages that kio has."""
    for cls, version in all_versions():
        theirs = kio_class(cls, version)
        if theirs is not None:
            yield cls, version, theirs


def check(cls: type[Message], version: int, theirs: type[Any], shapes: tuple[Shape, ...]) -> None:
    """Encode with one implementation, decode with the other and compare, in both directions."""
    read, write = entity_reader(theirs), entity_writer(theirs)
    for message in generated(cls, version, shapes, foreign=True):
        data = codec.encode(message, version)
        value, size = read(data, 0)
        assert size == len(data), (cls, version)
        assert plain_kio(value) == plain_ours(message, version), (cls, version)
        written = BytesIO()
        write(written, value)
        assert written.getvalue() == data, (cls, version)
        assert codec.decode(cls, version, written.getvalue()) == message, (cls, version)


@pytest.mark.long
def test_kio_holds_all_requests_and_responses() -> None:
    """kio has all requests and responses. Only metadata and coordinator records and two file formats are missing."""
    held = {cls.__name__ for cls, _, _ in held_by_kio()}
    lacking = {cls.__name__ for cls, version in all_versions() if kio_class(cls, version) is None}
    records = {fact.name for fact in messages() if fact.kind.startswith(("metadata", "coordinator"))}
    assert lacking == records | NOT_IN_KIO
    assert not held & lacking


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_message_is_byte_identical_to_kio(shape: Shape) -> None:
    """For every message and version that kio has, both implementations write the same bytes and read the same
    values."""
    for cls, version, theirs in held_by_kio():
        check(cls, version, theirs, (shape,))


@pytest.mark.long
@pytest.mark.parametrize("name", ["ProduceRequest", "FetchResponse", "MetadataResponse", "JoinGroupRequest"])
def test_long_values_are_byte_identical_to_kio(name: str) -> None:
    """Messages with lengths and counts of more than one byte are the same, too."""
    for cls, version, theirs in held_by_kio():
        if cls.__name__ == name:
            check(cls, version, theirs, (LONG,))
