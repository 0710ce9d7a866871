"""The small files of a log directory, in Kafka's formats.

* four offset checkpoints: text, version 0, a count, then `topic partition offset` lines;
* `meta.properties`: who this directory belongs to (version 1: cluster.id, node.id, directory.id);
* `.kafka_cleanshutdown`: there only after a clean shutdown, with the broker epoch that ended (KIP-966).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

import attrs

from data_plane.log.leader_epochs import MalformedCheckpoint, checkpoint_lines
from odradek.env.ports import Dir, FileMissing
from wire.uuid_text import uuid_from_text, uuid_to_text

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

_CLEAN_SHUTDOWN_VERSION = 0
_UNKNOWN_BROKER_EPOCH = -1

Offsets: TypeAlias = dict[tuple[str, int], int]


class NotALogDirectory(Exception):
    """`meta.properties` is missing or not valid: the directory has not been formatted."""


@attrs.frozen
class MetaProperties:
    """Who a log directory belongs to."""

    cluster_id: str
    node_id: int
    directory_id: bytes

    def encode(self) -> bytes:
        return (
            f"node.id={self.node_id}\n"
            f"directory.id={uuid_to_text(self.directory_id)}\n"
            "version=1\n"
            f"cluster.id={self.cluster_id}\n"
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> MetaProperties:
        """Raises `NotALogDirectory`."""
        fields = parse_properties(data)
        try:
            if fields["version"] != "1":
                raise NotALogDirectory(f"version {fields['version']!r}, only 1 is known")
            return cls(fields["cluster.id"], int(fields["node.id"]), uuid_from_text(fields["directory.id"]))
        except KeyError as missing:
            raise NotALogDirectory(f"no {missing.args[0]}") from None
        except ValueError as error:
            raise NotALogDirectory(str(error)) from None


def parse_properties(data: bytes) -> dict[str, str]:
    """The `key=value` lines of a Java properties file that a program wrote; backslashes escape one character."""
    fields = {}
    for line in data.decode("latin-1").splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            key, _, value = text.partition("=")
            fields[_unescape(key.strip())] = _unescape(value.strip())
    return fields


def _unescape(text: str) -> str:
    parts = text.split("\\")
    return parts[0] + "".join(parts[1:])


def read_meta_properties(directory: Dir) -> MetaProperties:
    """Raises `NotALogDirectory`, `DiskError`."""
    try:
        data = directory.read_bytes(META_PROPERTIES_FILE)
    except FileMissing:
        raise NotALogDirectory(f"{directory.path} has no {META_PROPERTIES_FILE}: format it first") from None
    try:
        return MetaProperties.decode(data)
    except NotALogDirectory as error:
        raise NotALogDirectory(f"{directory.path}/{META_PROPERTIES_FILE}: {error}") from None


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def decode_offsets(data: bytes) -> Offsets:
    """Raises `MalformedCheckpoint`. An empty file is an empty checkpoint."""
    offsets: Offsets = {}
    for fields in checkpoint_lines(data):
        try:
            topic, partition, offset = fields
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise MalformedCheckpoint(f"not a topic, partition and offset: {fields}") from None
    return offsets


def read_offsets(directory: Dir, name: str) -> Offsets:
    """An absent checkpoint is empty. Raises `MalformedCheckpoint`, `DiskError`."""
    try:
        return decode_offsets(directory.read_bytes(name))
    except FileMissing:
        return {}


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps(
        {"version": _CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":")
    ).encode()


def take_clean_shutdown(directory: Dir) -> int | None:
    """The broker epoch in the clean-shutdown marker, -1 if it names none; None without a marker.

    The marker is removed, durably, before anybody can change the directory: it vouches for one start only.

    Raises:
        DiskError
    """
    try:
        data = directory.read_bytes(CLEAN_SHUTDOWN_FILE)
    except FileMissing:
        return None
    directory.remove(CLEAN_SHUTDOWN_FILE)
    directory.sync()
    try:
        fields = json.loads(data)
        return int(fields["brokerEpoch"]) if fields["version"] == _CLEAN_SHUTDOWN_VERSION else -1
    except (ValueError, KeyError, TypeError):
        return _UNKNOWN_BROKER_EPOCH
