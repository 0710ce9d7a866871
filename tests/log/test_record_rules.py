"""Rules for single records: keys, timestamps and the timestamp type. A refusal names the records that break a rule."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.record_rules import RECORD_ERRORS_MAX, RECORDS_PARSED_MAX, RecordsRefused
from odradek.wire.batches.batch_header import ATTRIBUTES_OFFSET, CRC_START, check_crc, parse_header
from odradek.wire.batches.compression import CompressionType
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.by_hand import NOW_MS
from tests.log.support import append, batch, content, new_log

COMPACTED = LogConfig(cleanup_policy=("compact",))
NARROW = LogConfig(message_timestamp_before_max_ms=10_000, message_timestamp_after_max_ms=5_000)
APPEND_TIME = LogConfig(message_timestamp_type="LogAppendTime")
LOG_APPEND_TIME, TRANSACTIONAL = 8, 16
MAX_TIMESTAMP_AT = 35
CODECS = [CompressionType.NONE, CompressionType.GZIP]


def with_attributes(data: bytearray, flags: int) -> bytearray:
    """Return the batch with these attribute bits added, and a valid checksum."""
    data[ATTRIBUTES_OFFSET + 1] |= flags
    struct.pack_into(">I", data, CRC_START - 4, crc32c(memoryview(data)[CRC_START:]))
    return data


def refused(config: LogConfig, data: bytearray) -> RecordsRefused:
    """Return the error with which a batch is refused. Check that the log did not change."""
    log = new_log(config)
    with pytest.raises(RecordsRefused) as caught:
        append(log, data)
    assert log.log_end_offset == 0
    assert content(log) == b""
    return caught.value


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_wants_keys(codec: CompressionType) -> None:
    """A compacted topic refuses records without a key by INVALID_RECORD, with the index of each (KIP-467).

    The message shows three of them.
    """
    builder = RecordBatchBuilder(compression_type=codec)
    for serial in range(9):
        builder.append(NOW_MS, b"k" if serial % 2 else None, b"v")
    error = refused(COMPACTED, builder.build())
    text = "Compacted topic cannot accept message without key in topic partition t-0"
    assert error.code == ErrorCode.INVALID_RECORD
    assert error.record_errors == [(index, text) for index in (0, 2, 4, 6, 8)]
    assert error.message.startswith("One or more records have been rejected due to 5 record errors in total")
    assert error.message.count("RecordError(") == 3
    assert append(new_log(COMPACTED), batch(3, compression_type=codec)).last_offset == 2


@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_keep_to_the_bounds(codec: CompressionType) -> None:
    """Timestamps outside of the bounds get INVALID_TIMESTAMP, and the error names the records and the bounds.

    The keys are `message.timestamp.before.max.ms` and `.after.max.ms`.
    """
    builder = RecordBatchBuilder(compression_type=codec)
    for late in (0, -10_001, -10_000, 5_000, 5_001):
        builder.append(NOW_MS + late, b"k", b"v")
    error = refused(NARROW, builder.build())
    assert (error.code, error.message) == (
        ErrorCode.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
    )
    assert error.record_errors == [
        (
            index,
            f"Timestamp {NOW_MS + late} of message with offset {index} is out of range. "
            f"The timestamp should be within [{NOW_MS - 10_000}, {NOW_MS + 5_000}]",
        )
        for index, late in ((1, -10_001), (4, 5_001))
    ]
    assert append(new_log(NARROW), batch(2, timestamp=-1, step=0)).last_offset == 1


def test_a_bad_timestamp_outweighs_a_missing_key() -> None:
    """A batch with both faults gets INVALID_TIMESTAMP, as in Kafka.

    A record with both faults is reported for its missing key only.
    """
    config = LogConfig(cleanup_policy=("compact",), message_timestamp_after_max_ms=5_000)
    builder = RecordBatchBuilder()
    builder.append(NOW_MS, None, b"v")
    builder.append(NOW_MS + 6_000, b"k", b"v")
    builder.append(NOW_MS + 6_000, None, b"v")
    error = refused(config, builder.build())
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [0, 1, 2]
    assert [text[:9] for _, text in error.record_errors] == ["Compacted", "Timestamp", "Compacted"]


@pytest.mark.parametrize("claimed", [NOW_MS + 60_000, NOW_MS - 60_000, 0, -1])
@pytest.mark.parametrize("config", [NARROW, COMPACTED, LogConfig()])
@pytest.mark.parametrize("codec", CODECS)
def test_records_decide_about_the_newest_timestamp(
    codec: CompressionType, config: LogConfig, claimed: int
) -> None:
    """A batch's header has a wrong newest timestamp.

    The batch is accepted, and the timestamp is set from its records, as in Kafka.
    """
    data = batch(3, compression_type=codec)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, claimed)
    log = new_log(config)
    if config == LogConfig() and claimed > NOW_MS:
        config = log.config = LogConfig(message_timestamp_after_max_ms=5_000)
    append(log, with_attributes(data, 0))
    stored = content(log)
    assert parse_header(stored).max_timestamp == NOW_MS + 2
    assert check_crc(stored, 0, len(stored))
    assert log.active.max_timestamp_ms == NOW_MS + 2


def test_records_out_of_bounds_are_found_behind_a_header_within_them() -> None:
    """A header contradicts itself, with its newest timestamp before its first.

    Each record's timestamp is then checked.
    """
    data = batch(2, timestamp=NOW_MS + 60_000)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, -1)
    error = refused(LogConfig(message_timestamp_after_max_ms=5_000), with_attributes(data, 0))
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [0, 1]


def test_only_the_broker_stamps_append_time() -> None:
    """A producer's batch claims LogAppendTime.

    A topic with LogAppendTime refuses it; a topic with CreateTime removes the claim.
    """
    error = refused(APPEND_TIME, with_attributes(batch(2), LOG_APPEND_TIME))
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert error.record_errors[1] == (
        1,
        f"Invalid timestamp type in message DefaultRecord(offset=1, timestamp={NOW_MS + 1}, key=2 bytes, "
        "value=20 bytes). Producer should not set timestamp type to LogAppendTime.",
    )
    log = new_log()
    append(log, with_attributes(batch(2), LOG_APPEND_TIME))
    plain = new_log()
    append(plain, batch(2))
    assert content(log) == content(plain)


def test_a_transactional_batch_needs_a_transaction() -> None:
    """A transactional batch is refused if its transaction is unverified, with or without a producer id.

    The code is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as in Kafka.
    """
    for fields in ({}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}):
        log = new_log()
        with pytest.raises(KafkaError) as caught:
            append(log, with_attributes(batch(1, **fields), TRANSACTIONAL))
        assert caught.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert log.log_end_offset == 0


def test_a_refusal_has_a_limit() -> None:
    """A refusal lists at most `RECORD_ERRORS_MAX` records.

    A batch of too many records is refused without reading them.
    """
    builder = RecordBatchBuilder(compression_type=CompressionType.GZIP)
    for _ in range(RECORD_ERRORS_MAX + 5):
        builder.append(NOW_MS, None, b"")
    error = refused(COMPACTED, builder.build())
    assert len(error.record_errors) == RECORD_ERRORS_MAX
    assert f"due to {RECORD_ERRORS_MAX + 5} record errors" in error.message
    data = batch(1, value=bytes(8 * RECORDS_PARSED_MAX), compression_type=CompressionType.GZIP)
    struct.pack_into(">i", data, 57, RECORDS_PARSED_MAX + 1)
    struct.pack_into(">i", data, 23, RECORDS_PARSED_MAX)
    log = new_log(COMPACTED)
    with pytest.raises(KafkaError) as caught:
        append(log, with_attributes(data, CompressionType.GZIP))
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert parse_header(data).record_count == RECORDS_PARSED_MAX + 1
