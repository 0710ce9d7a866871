"""Target `metadata`: the metadata log, its snapshots, and the records of coordinators' logs.

The first byte of an input chooses the form. Checksums are corrected first, so that the records behind them are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import InvalidMetadata, MetadataImage
from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot, encode_snapshot
from odradek.metadata_quorum.replica.log_reading import describe_batches
from odradek.metadata_quorum.replica.metadata_batches import (
    batch_of_control_records,
    batch_of_values,
    read_batches,
)
from odradek.wire.errors import KafkaError, MalformedMessage
from odradek.wire.messages.control_records import KRaftVersionRecord, LeaderChangeMessage, VotersRecord
from odradek.wire.messages.coordinator_records import KEYS, VALUES, TransactionLogKey, TransactionLogValue
from odradek.wire.messages.metadata_records import RECORDS, PartitionRecord, TopicRecord
from odradek.wire.metadata_frames import (
    ControlRecordType,
    decode_control_record,
    decode_coordinator_key,
    decode_coordinator_value,
    decode_versioned_metadata_record,
    encode_control_record,
    encode_coordinator_key,
    encode_coordinator_value,
    encode_metadata_record,
)
from odradek.wire.structure import Message
from tests.fuzz.sealing import seal_batches
from tests.fuzz.target import Input, Target
from tests.wire.message_values import SHAPES, generated

_EPOCH, _NOW_MS = 3, 1_700_000_000_000


def snapshot(given: Input) -> None:
    """Read a snapshot file, and replay its records into an image."""
    data = bytearray(given.rest())
    seal_batches(data)
    try:
        found = decode_snapshot(bytes(data), source="fuzz")
    except MetadataLogCorrupt:
        return
    replay(list(found.records))


def log(given: Input) -> None:
    """Read a part of the metadata log."""
    data = bytearray(given.rest())
    seal_batches(data)
    with suppress(KafkaError):
        list(describe_batches(bytes(data), source="fuzz"))
    with suppress(MetadataLogCorrupt):
        list(read_batches(bytes(data), source="fuzz"))


def record(given: Input) -> None:
    """Decode a metadata record and encode it again."""
    try:
        message, version = decode_versioned_metadata_record(given.rest())
    except MalformedMessage:
        return
    first = encode_metadata_record(message, version)
    assert encode_metadata_record(decode_versioned_metadata_record(first)[0], version) == first


def control(given: Input) -> None:
    """Decode a control record."""
    key = given.take(given.byte() % 8)
    try:
        kind, message = decode_control_record(key, given.rest())
    except MalformedMessage:
        return
    assert (message is None) == (kind is ControlRecordType.UNKNOWN)


def coordinator(given: Input) -> None:
    """Decode the key and the value of a coordinator's record, and encode them again."""
    log_of: tuple[str, ...] = ("group", "transaction")
    which = log_of[given.byte() % 2]
    held = given.take(given.byte())
    try:
        key = decode_coordinator_key(held, "group" if which == "group" else "transaction")
        assert encode_coordinator_key(key) == held
        value = decode_coordinator_value(key, given.rest())
    except MalformedMessage:
        return
    first = encode_coordinator_value(value)
    assert encode_coordinator_value(decode_coordinator_value(key, first)) == first


def image(given: Input) -> None:
    """Replay metadata records in the order in which the input has them."""
    found: list[Message] = []
    while not given.is_empty:
        try:
            found.append(decode_versioned_metadata_record(given.take(given.byte()))[0])
        except MalformedMessage:
            continue
    replay(found)


def replay(found: list[Message]) -> None:
    """Replay records. The records of the image's snapshot must replay to the same image."""
    builder = ImageBuilder(MetadataImage())
    try:
        for offset, message in enumerate(found):
            builder.replay(offset, message, _EPOCH)
        made, _ = builder.build()
    except InvalidMetadata:
        return
    first = [encode_metadata_record(message) for message in records_of(made)]
    copy = ImageBuilder(MetadataImage())
    for offset, value in enumerate(first):
        copy.replay(offset, decode_versioned_metadata_record(value)[0], _EPOCH)
    assert [encode_metadata_record(message) for message in records_of(copy.build()[0])] == first


FORMS: tuple[Callable[[Input], None], ...] = (snapshot, log, record, control, coordinator, image)


def run(data: bytes) -> None:
    """Read one thing in the form that the first byte chooses."""
    given = Input(data)
    FORMS[given.byte() % len(FORMS)](given)


def _records() -> list[Message]:
    """Return a record of each type, and the records of a whole topic."""
    topic = bytes(range(16))
    whole: list[Message] = [
        TopicRecord("words", topic),
        PartitionRecord(0, topic, [1], [1], [], [], 1, 0, 0),
    ]
    return whole + [generated(cls, cls.VALID_VERSIONS[1], SHAPES)[2] for cls in RECORDS.values()]


def seeds() -> Iterator[bytes]:
    """Return an input of each form, as a node writes it."""
    found = _records()
    voters = generated(VotersRecord, 0, SHAPES)[2]
    voters.version = 0
    controls: list[Message] = [LeaderChangeMessage(leader_id=1), KRaftVersionRecord(0, 1), voters]
    for some in ([], found[:2], found):
        yield bytes([0]) + encode_snapshot(
            some, control_records=controls[1:], epoch=_EPOCH, timestamp_ms=_NOW_MS
        )
    values = [encode_metadata_record(message) for message in found]
    first = batch_of_control_records(controls, 0, _EPOCH, _NOW_MS)
    yield bytes([1]) + bytes(first) + bytes(batch_of_values(values, len(controls), _EPOCH, _NOW_MS))
    for value in values:
        yield bytes([2]) + value
        if len(value) < 256:
            yield bytes([5]) + b"".join(
                bytes([len(each)]) + each for each in (*values[:2], value) if len(each) < 256
            )
    for message in controls:
        key, value = encode_control_record(message)
        yield bytes([3, len(key)]) + key + value
    for number, cls in KEYS.items():
        yield _pair(
            0,
            generated(cls, 0, SHAPES)[2],
            generated(VALUES[number], VALUES[number].VALID_VERSIONS[1], SHAPES)[2],
        )
    yield _pair(1, TransactionLogKey("mine"), generated(TransactionLogValue, 1, SHAPES)[2])


def _pair(which: int, key: Message, value: Message) -> bytes:
    held = encode_coordinator_key(key)
    return bytes([4, which, len(held)]) + held + encode_coordinator_value(value)


TARGET = Target("metadata", run, seeds)
