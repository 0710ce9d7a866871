"""Conflicts between a topic's configuration keys: each value is valid alone, but the combination does not do
what the documentation of each key says. PURE.

`odradek config get topic NAME --explain` shows them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

__all__ = ["conflicts"]


def conflicts(
    values: Mapping[str, str | None], own: Collection[str], replication_factor: int
) -> list[tuple[str, str]]:
    """Find conflicts between keys. Each result is a key, and a sentence that says what the key really does and what to
    change.

    `values` are all effective values of one topic, and `own` the keys set on the topic itself.
    `replication_factor` is the smallest replication factor of the topic's partitions.
    """
    number = {key: int(value) for key, value in values.items() if value and value.lstrip("-").isdigit()}
    policy = {each.strip() for each in (values.get("cleanup.policy") or "").split(",")}
    return [
        *_against_segments(number, policy),
        *_against_replicas(number.get("min.insync.replicas", 1), replication_factor),
        *_against_policy(number, policy, own),
    ]


def _against_segments(number: Mapping[str, int], policy: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield conflicts of retention and compaction keys with the segment size: only whole segments are
    deleted.
    """
    segment = number.get("segment.bytes", 0)
    if 0 <= number.get("retention.bytes", -1) < segment:
        yield (
            "retention.bytes",
            f"only whole, finished segments are deleted: a partition keeps up to segment.bytes "
            f"({segment}) and more, although retention.bytes is {number['retention.bytes']}. Lower segment.bytes",
        )
    if segment and number.get("max.message.bytes", 0) > segment:
        yield (
            "max.message.bytes",
            f"a batch must fit into a segment of {segment} bytes (segment.bytes): larger batches are refused with "
            "RECORD_LIST_TOO_LARGE. Raise segment.bytes",
        )
    if "delete" in policy and 0 <= number.get("retention.ms", -1) < number.get("segment.ms", 0):
        yield (
            "retention.ms",
            f"the value is below segment.ms ({number['segment.ms']}): records stay until their segment is finished, or "
            "all its records are too old. Lower segment.ms",
        )


def _against_replicas(in_sync: int, replication_factor: int) -> Iterator[tuple[str, str]]:
    if in_sync > replication_factor:
        yield (
            "min.insync.replicas",
            f"the topic has only {replication_factor} replicas, so {in_sync} can never be in sync: all of them must "
            "be in sync instead. Add replicas (`odradek partition move`), or lower the value",
        )
    elif replication_factor == in_sync > 1:
        yield (
            "min.insync.replicas",
            "the value equals the replication factor: acks=all is refused as soon as one replica is down. Lower the "
            "value by one, or add a replica",
        )


def _against_policy(
    number: Mapping[str, int], policy: Collection[str], own: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield keys that have no effect, or act too early, because of `cleanup.policy`."""
    if policy == {"compact"}:
        for key in ("retention.ms", "retention.bytes"):
            if key in own and number.get(key, -1) >= 0:
                yield (
                    key,
                    "cleanup.policy is compact: nothing is deleted by age or size. Add delete to cleanup.policy",
                )
    if "compact" in policy and number.get("delete.retention.ms") == 0:
        yield (
            "delete.retention.ms",
            "the next pass may remove a tombstone, so a reader that is behind may miss the deletion. Raise the value",
        )
    retention_ms = number.get("retention.ms", -1)
    if {"compact", "delete"} == policy and 0 <= retention_ms <= number.get("min.compaction.lag.ms", -1):
        yield (
            "min.compaction.lag.ms",
            f"records are deleted after retention.ms ({retention_ms}), before they may be compacted. "
            "Raise retention.ms, or leave compact out",
        )
