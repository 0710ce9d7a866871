"""The formats of a log directory's small files: offset checkpoints, and the clean-shutdown marker with the
broker epoch. The formats are Kafka's.

* Four offset checkpoints are text files: version 0, the number of entries, then a line `topic partition
  offset` for each entry.
* `.kafka_cleanshutdown` exists only after a clean shutdown. It has the broker epoch that the broker had until
  the shutdown (KIP-966).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from odradek.data_plane.log.log_config import LONG_MAX
from odradek.data_plane.log.parts.leader_epochs import MalformedCheckpoint, checkpoint_lines
from odradek.env.ports import Dir, FileMissing
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

_CLEAN_SHUTDOWN_VERSION = 0
_UNKNOWN_BROKER_EPOCH = -1

Offsets: TypeAlias = dict[TopicPartition, int]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def decode_offsets(data: bytes) -> Offsets:
    """Decode the text of an offset checkpoint. An empty file is an empty checkpoint. Raises
    `MalformedCheckpoint`.
    """
    offsets: Offsets = {}
    for fields in checkpoint_lines(data):
        try:
            topic, partition, offset = fields[0], int(fields[1]), int(fields[2])
        except (ValueError, IndexError):
            raise MalformedCheckpoint(f"a line is not a topic, a partition and an offset: {fields}") from None
        if len(fields) != 3 or not 0 <= offset <= LONG_MAX:
            raise MalformedCheckpoint(f"a line does not end in an offset: {fields}")
        offsets[TopicPartition(topic, partition)] = offset
    return offsets


def read_offsets(directory: Dir, name: str) -> Offsets:
    """Read an offset checkpoint; a missing file is an empty checkpoint. Raises `MalformedCheckpoint`,
    `DiskError`.
    """
    try:
        return decode_offsets(directory.read_bytes(name))
    except FileMissing:
        return {}


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps(
        {"version": _CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":")
    ).encode()


def take_clean_shutdown(directory: Dir) -> int | None:
    """Remove the clean-shutdown marker. Returns the broker epoch in it: -1 if the epoch is not valid, None if
    the marker is missing.

    The removal is synced before anything else in the directory changes, because the marker is valid for one
    start only. Raises `DiskError`.
    """
    try:
        data = directory.read_bytes(CLEAN_SHUTDOWN_FILE)
    except FileMissing:
        return None
    directory.remove(CLEAN_SHUTDOWN_FILE)
    directory.sync()
    try:
        fields = json.loads(data)
        epoch = int(fields["brokerEpoch"]) if fields["version"] == _CLEAN_SHUTDOWN_VERSION else -1
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        reached("log.clean_shutdown_without_epoch")
        return _UNKNOWN_BROKER_EPOCH
    return epoch if 0 <= epoch <= LONG_MAX else _UNKNOWN_BROKER_EPOCH
