"""Random requests of any API and version. Some are valid, and some are slightly wrong. PURE.

Each field of a request gets a value that fits the field's name. A request that only reads may name the workload's
topics. A request that changes something names other topics, or unknown ones, so that the workload is unaffected.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs

from odradek.wire.api import ApiKey, request_class
from odradek.wire.structure import Structure, WireField, version_range

ASKED_NAMES = ("asked-1", "asked-1", "asked-2", "", "no good name!", "a" * 300)
NO_BROKER = 99
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
READING = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
    }
)
"""APIs that change nothing."""
CONTROLLER_ASKED = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS}
)
"""Requests that change nothing when a foreign client sends them to a controller. All other requests to controllers come
from nodes, and change something.
"""
_INTEGERS = (-1, 0, 0, 1, 1, 2, 3)
_EXTREME_PROBABILITY = 0.1
_NULL_PROBABILITY = 0.2
_ARRAY_SIZES = (0, 1, 1, 2)

__all__ = ["ASKED_NAMES", "CONTROLLER_ASKED", "READING", "draw_request"]


def draw_request(api_key: int, version: int, random: Random, topics: Sequence[str]) -> Any:
    """Draw a request of this API and version. `topics` are the workload's topics; only requests that change nothing
    may name them.
    """
    names = (*ASKED_NAMES, *topics) if api_key in READING else ASKED_NAMES
    request = _Drawing(version, random, names, api_key in READING).structure(request_class(api_key))
    if api_key == ApiKey.CREATE_TOPICS:
        # A created topic could have replicas on any broker, and wait for that broker forever.
        request.validate_only = True
    if api_key == ApiKey.PRODUCE:
        request.acks = random.choice((1, -1))  # A request with acks=0 gets no answer that could be checked.
    if api_key == ApiKey.LIST_OFFSETS:
        # Kafka answers other isolation levels with UNKNOWN_SERVER_ERROR.
        request.isolation_level = random.choice((0, 1))
    if api_key == ApiKey.WRITE_TXN_MARKERS:
        for marker in request.markers:
            # Kafka answers other transaction versions with UNKNOWN_SERVER_ERROR. A marker also needs a valid
            # producer id and epoch.
            marker.transaction_version = random.choice((0, 1, 2))
            marker.producer_id = max(marker.producer_id, 0)
            marker.producer_epoch = max(marker.producer_epoch, 0)
    return request


@attrs.define
class _Drawing:
    version: int
    random: Random
    names: Sequence[str]
    reads: bool

    def structure(self, cls: type[Structure]) -> Any:
        fields = {each.name: each.metadata["kafka"] for each in attrs.fields(cls)}
        return cls(
            **{
                name: self._field(name, fact)
                for name, fact in fields.items()
                if _contains(fact.versions, self.version)
                and (not _contains(fact.tagged, self.version) or self.random.random() < 0.5)
            }
        )

    def _field(self, name: str, fact: WireField) -> Any:
        # In some requests null means "everything". So a request that changes something must not have null there.
        may_be_null = self.reads or fact.type in ("records", "bytes")
        if (
            may_be_null
            and _contains(fact.nullable, self.version)
            and self.random.random() < _NULL_PROBABILITY
        ):
            return None
        if isinstance(fact.type, str):
            return self._value(name, fact.type)
        if isinstance(fact.type, type):
            return self.structure(fact.type)
        (element,) = fact.type
        size = self.random.choice(_ARRAY_SIZES)
        if isinstance(element, str):
            return [self._value(name, element) for _ in range(size)]
        return [self.structure(element) for _ in range(size)]

    def _value(self, name: str, kind: str) -> Any:
        random = self.random
        match kind:
            case "bool":
                return random.random() < 0.5
            case "float64":
                return random.choice((0.0, 1.0, -1.0, float("inf")))
            case "uuid":
                return random.choice((bytes(16), random.randbytes(16)))
            case "string":
                return self._text(name)
            case "bytes" | "records":
                return random.randbytes(random.choice((0, 4, 61, 100)))
        return self._integer(name, kind)

    def _text(self, name: str) -> str:
        random = self.random
        if "config" in name or name == "value":
            return random.choice(("retention.ms", "cleanup.policy", "asked.nothing", "1000", "", "-5"))
        if name == "key_type" or "type" in name:
            return random.choice(("consumer", "client-id", "user", "ip", "asked"))
        return random.choice(self.names)

    def _integer(self, name: str, kind: str) -> int:
        random = self.random
        if kind.startswith("uint"):
            return random.choice((0, 1, 9092))
        if random.random() < _EXTREME_PROBABILITY:
            half = 1 << (INTEGER_BITS[kind] - 1)
            return random.choice((-half, half - 1))
        if name.endswith(("broker_id", "broker_ids", "replica_id", "voter_id", "replicas")):
            return random.choice((NO_BROKER, -1))
        if name.endswith("wait_ms") or "timeout_ms" in name:
            return random.choice((0, 10, 500))
        if name.endswith("bytes"):
            return random.choice((0, 1, 1000, 100_000))
        if "type" in name or "operation" in name:
            return random.randint(-1, 12)
        return random.choice(_INTEGERS)


def _contains(text: str, version: int) -> bool:
    low, high = version_range(text)
    return low <= version <= high
