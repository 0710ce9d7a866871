"""Topic configurations that fight: each is valid alone, and together they do something else than they say. PURE.

`odradek config get topic NAME --explain` tells of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["conflicts"]


def conflicts(
    values: Mapping[str, str | None], own: Collection[str], replication_factor: int
) -> list[tuple[str, str]]:
    """The key, and what it does instead and what to do, for each fight.

    `values` are all keys of one topic, and `own` those that the topic itself has. The replication factor is the
    smallest of its partitions.
    """
    number = {key: int(value) for key, value in values.items() if value and value.lstrip("-").isdigit()}
    policy = {each.strip() for each in (values.get("cleanup.policy") or "").split(",")}
    found: list[tuple[str, str]] = []

    def tell(key: str, text: str) -> None:
        found.append((key, text))

    def has(*keys: str) -> bool:
        return all(key in number for key in keys)

    segment = number.get("segment.bytes", 0)
    if has("retention.bytes", "segment.bytes") and 0 <= number["retention.bytes"] < segment:
        tell(
            "retention.bytes",
            f"whole segments are deleted, never the one that is written: a partition keeps up to segment.bytes "
            f"({segment}) and more, although retention.bytes is {number['retention.bytes']}. Lower segment.bytes",
        )
    if has("max.message.bytes", "segment.bytes") and number["max.message.bytes"] > segment:
        tell(
            "max.message.bytes",
            f"a batch does not fit into a segment of {segment} bytes (segment.bytes): larger ones are refused with "
            "RECORD_LIST_TOO_LARGE. Raise segment.bytes",
        )
    in_sync = number.get("min.insync.replicas", 1)
    if in_sync > replication_factor:
        tell(
            "min.insync.replicas",
            f"the topic has {replication_factor} replicas, and can never have {in_sync} in sync: "
            "as many as there are count. Add replicas (`odradek partition move`), or lower it",
        )
    elif replication_factor == in_sync > 1:
        tell(
            "min.insync.replicas",
            "it is the replication factor: as soon as one replica is away, acks=all is refused. Lower it by one, or add "
            "a replica",
        )
    if (
        "delete" in policy
        and has("retention.ms", "segment.ms")
        and 0 <= number["retention.ms"] < number["segment.ms"]
    ):
        tell(
            "retention.ms",
            f"it is shorter than segment.ms ({number['segment.ms']}): records stay until their segment is finished, or "
            "all of it is too old. Lower segment.ms",
        )
    if policy == {"compact"}:
        for key in ("retention.ms", "retention.bytes"):
            if key in own and number.get(key, -1) >= 0:
                tell(
                    key,
                    "cleanup.policy is compact: nothing is deleted by age or size. Add delete to cleanup.policy",
                )
    if "compact" in policy and number.get("delete.retention.ms") == 0:
        tell(
            "delete.retention.ms",
            "a tombstone may go with the next pass: a reader that is behind never learns that its key is gone. Raise it",
        )
    if (
        {"compact", "delete"} <= policy
        and has("retention.ms", "min.compaction.lag.ms")
        and 0 <= number["retention.ms"] <= number["min.compaction.lag.ms"]
    ):
        tell(
            "min.compaction.lag.ms",
            f"records are deleted after retention.ms ({number['retention.ms']}), before they may be compacted. "
            "Raise retention.ms, or leave compact out",
        )
    return found
