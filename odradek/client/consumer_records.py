"""From a fetched batch to the records that an application gets: the consumer's hot loop. PURE.

About half a microsecond per record: the varints of one and two bytes are inlined, checks are those that keep a
damaged batch from being misread, and the tuple is built once, with topic and partition in it.
"""

from __future__ import annotations

from odradek.client.consumer_types import ConsumerRecord
from wire.batch_errors import CorruptBatch, InvalidRecord
from wire.batch_header import HEADER_SIZE, BatchHeader, check_crc
from wire.compression import decompress
from wire.errors import MalformedMessage
from wire.primitives import read_varint, read_varlong
from wire.records import Header

__all__ = ["consumer_records"]

_RECORD_SIZE_MIN = 7


def consumer_records(
    topic: str,
    partition: int,
    data: memoryview,
    position: int,
    header: BatchHeader,
    *,
    decompressed_bytes_max: int,
    crc: bool,
) -> list[ConsumerRecord]:
    """The records of the batch that begins at `position` of `data` and whose header is `header`.

    Raises `CorruptBatch`, `InvalidRecord` (both `KafkaError`), as `wire.records.records`.
    """
    if crc and not check_crc(data, position, header.size):
        raise CorruptBatch(f"{topic}-{partition}: the checksum of the batch at {header.base_offset} is wrong")
    body = data[position + HEADER_SIZE : position + header.size]
    plain = decompress(header.compression_type, body, decompressed_bytes_max)
    count = header.record_count
    if count < 0 or count * _RECORD_SIZE_MIN > len(plain):
        raise InvalidRecord(f"{count} records cannot be in {len(plain)} bytes")
    try:
        return _parse(topic, partition, plain, header)
    except IndexError:
        raise InvalidRecord("a record is longer than its batch") from None
    except UnicodeDecodeError as error:
        raise InvalidRecord("a record header's key is not UTF-8") from error
    except MalformedMessage as error:
        raise InvalidRecord(str(error)) from error


def _parse(topic: str, partition: int, data: bytes, header: BatchHeader) -> list[ConsumerRecord]:
    """Slices that reach behind the data come back short, so each record's end is compared with its length."""
    found: list[ConsumerRecord] = []
    append = found.append
    new = tuple.__new__
    record_type = ConsumerRecord
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    delta_max = header.last_offset_delta
    leader_epoch = header.partition_leader_epoch
    timestamp_type = header.timestamp_type
    append_time = header.max_timestamp
    position = 0
    delta_last = -1
    for _ in range(header.record_count):
        byte = data[position]
        if byte < 0x80:
            position += 1
            end = position + (byte >> 1)
        elif (high := data[position + 1]) < 0x80:
            position += 2
            end = position + ((byte & 0x7F | high << 7) >> 1)
        else:
            size, position = read_varint(data, position)
            end = position + size

        byte = data[position + 1]
        position += 2
        if byte < 0x80:
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
        elif (high := data[position]) < 0x80:
            byte = byte & 0x7F | high << 7
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            position += 1
        else:
            timestamp, position = read_varlong(data, position - 1)
            timestamp += base_timestamp

        byte = data[position]
        position += 1
        if byte < 0x80:
            delta = (byte >> 1) ^ -(byte & 1)
        elif (high := data[position]) < 0x80:
            byte = byte & 0x7F | high << 7
            delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            delta, position = read_varint(data, position - 1)
        if not delta_last < delta <= delta_max:
            raise InvalidRecord(f"offset delta {delta} behind {delta_last}, the last is {delta_max}")
        delta_last = delta

        byte = data[position]
        position += 1
        if byte == 1:
            key = None
        else:
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
            else:
                size, position = read_varint(data, position - 1)
            if size < 0:
                raise InvalidRecord(f"key of {size} bytes")
            key = data[position : position + size]
            position += size

        byte = data[position]
        position += 1
        if byte == 1:
            value = None
        else:
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
            elif (high := data[position]) < 0x80:
                byte = byte & 0x7F | high << 7
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = read_varint(data, position - 1)
            if size < 0:
                raise InvalidRecord(f"value of {size} bytes")
            value = data[position : position + size]
            position += size

        headers: tuple[Header, ...] = ()
        if data[position]:
            headers, position = _parse_headers(data, position)
        else:
            position += 1
        if position != end:
            raise InvalidRecord(f"a record ends {position - end} bytes behind its length")
        if timestamp_type:
            timestamp = append_time
        append(
            new(
                record_type,
                (
                    topic,
                    partition,
                    base_offset + delta,
                    timestamp,
                    key,
                    value,
                    headers,
                    leader_epoch,
                    timestamp_type,
                ),
            )
        )
    if position != len(data):
        raise InvalidRecord(f"{len(data) - position} bytes behind the last of {header.record_count} records")
    return found


def _parse_headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count < 0:
        raise InvalidRecord(f"{count} record headers")
    headers: list[Header] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise InvalidRecord("a record header without a key")
        key = data[position : position + size].decode()
        position += size
        size, position = read_varint(data, position)
        if size < -1:
            raise InvalidRecord(f"record header value of {size} bytes")
        if size == -1:
            headers.append((key, None))
        else:
            headers.append((key, data[position : position + size]))
            position += size
    return tuple(headers), position
