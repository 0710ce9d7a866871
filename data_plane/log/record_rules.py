"""Checks the rules of a topic for single records. In a compacted topic each record has a key. The timestamps
lie within the topic's bounds.

Records are parsed in two cases only. First, a rule needs each record: the topic is compacted, or limits how
old timestamps may be. Second, the timestamps in the batch's header contradict each other, or lie outside of
the topic's bounds. Error texts and the order of checks are Kafka's (KIP-467).
"""

from __future__ import annotations

from odradek.data_plane.log.log_config import LogConfig
from odradek.wire.batches.batch_header import NO_TIMESTAMP, TIMESTAMP_TYPE_MASK, BatchHeader
from odradek.wire.batches.records import Record, records
from odradek.wire.errors import ErrorCode, KafkaError

RECORD_ERRORS_MAX = 1000
"""The most record errors in the answer about one batch. Without this limit, a small compressed batch could
cause an answer of gigabytes.
"""
RECORDS_PARSED_MAX = 262_144
"""The most records of a batch that are parsed. An uncompressed batch of the default size has fewer; each
parsed record takes some 250 bytes.
"""
_SHOWN = 3


class RecordsRefused(KafkaError):
    """Raised if some records break the topic's rules. `record_errors` lists them in order, as (index of the
    record in the batch, reason).
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def check_records(batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, name: str) -> int:
    """Check every record by the topic's rules, and return the newest timestamp in ms. `name` is the
    partition's name for error texts.

    Raises:
        RecordsRefused: INVALID_TIMESTAMP if any record's timestamp is at fault, else INVALID_RECORD.
        KafkaError: the bytes are not valid records.
    """
    if header.record_count > RECORDS_PARSED_MAX:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.record_count} records, but at most {RECORDS_PARSED_MAX} are allowed",
        )
    errors: list[tuple[int, str]] = []
    newest = NO_TIMESTAMP
    count = 0
    code = ErrorCode.INVALID_RECORD
    for index, record in enumerate(
        records(batch, decompressed_bytes_max=config.decompressed_bytes_max, crc=False)
    ):
        if record.timestamp > newest:
            newest = record.timestamp
        if config.is_compacted and record.key is None:
            reason = f"Compacted topic cannot accept message without key in topic partition {name}"
        else:
            late = _timestamp_problem(record, header, config, now_ms)
            if late is None:
                continue
            reason = late
            code = ErrorCode.INVALID_TIMESTAMP
        count += 1
        if count <= RECORD_ERRORS_MAX:
            errors.append((index, reason))
    if not errors:
        return newest
    if code == ErrorCode.INVALID_TIMESTAMP:
        message = "One or more records have been rejected due to invalid timestamp"
    else:
        shown = ", ".join(
            f"RecordError(batchIndex={index}, message='{reason}')" for index, reason in errors[:_SHOWN]
        )
        message = (
            f"One or more records have been rejected due to {count} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]"
        )
    raise RecordsRefused(code, message, errors)


def _timestamp_problem(record: Record, header: BatchHeader, config: LogConfig, now_ms: int) -> str | None:
    timestamp = record.timestamp
    if config.uses_append_time:
        if header.attributes & TIMESTAMP_TYPE_MASK:
            return (
                f"Invalid timestamp type in message DefaultRecord(offset={record.offset}, "
                f"timestamp={timestamp}, key={len(record.key or b'')} bytes, "
                f"value={len(record.value or b'')} bytes). "
                "Producer should not set timestamp type to LogAppendTime."
            )
        return None
    oldest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms
    if timestamp == NO_TIMESTAMP or oldest <= timestamp <= newest:
        return None
    return (
        f"Timestamp {timestamp} of message with offset {record.offset} is out of range. "
        f"The timestamp should be within [{oldest}, {newest}]"
    )
