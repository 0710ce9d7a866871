"""The translation of the committed offsets of groups from the source to the target, by the offset map."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from odradek import Admin
from odradek.client.admin import CommittedOffset
from odradek.spark.pipelines.mirror.offset_map import OffsetMap
from odradek.wire.topic_partition import TopicPartition

__all__ = ["GroupOutcome", "translate_groups", "translated"]


@attrs.frozen
class GroupOutcome:
    """The outcome for one group. `moved` has the offsets that were set in the target. `left` has a sentence
    for each offset that was not set.
    """

    group: str
    moved: dict[TopicPartition, int]
    unchanged: int
    left: tuple[str, ...]


def translated(
    offset_map: OffsetMap,
    committed: dict[TopicPartition, CommittedOffset],
    present: dict[TopicPartition, CommittedOffset],
) -> tuple[dict[TopicPartition, CommittedOffset], int, list[str]]:
    """Translate one group's committed offsets.

    Return the offsets to commit in the target, the number of offsets that are already right, and sentences. There is
    a sentence for each offset that is not set. If the target's group has committed a higher offset, this offset stays,
    because a consumer already reads there.
    """
    wanted: dict[TopicPartition, CommittedOffset] = {}
    left: list[str] = []
    same = 0
    for key, there in sorted(committed.items()):
        offset = offset_map.translate(key, there.offset)
        before = present[key].offset if key in present else -1
        if there.error is not None:
            left.append(f"{key}: {there.error}")
        elif offset is None:
            left.append(f"{key}: the record at offset {there.offset} is not copied yet")
        elif before > offset:
            left.append(f"{key}: the target's group has committed offset {before}, which is beyond {offset}")
        elif before == offset:
            same += 1
        else:
            wanted[key] = CommittedOffset(offset, metadata=there.metadata)
    return wanted, same, left


def translate_groups(
    source: Admin,
    target: Admin,
    offset_map: OffsetMap,
    groups: Sequence[str],
    topics: Collection[str],
) -> list[GroupOutcome]:
    """Translate the committed offsets of each group, and commit them in the target. Raises `KafkaError`,
    `ClientError`.
    """
    outcomes: list[GroupOutcome] = []
    if not groups:
        return outcomes
    theirs = source.list_group_offsets(dict.fromkeys(groups), require_stable=True)
    present = {each.group_id: each for each in target.list_group_offsets(dict.fromkeys(groups))}
    for group in theirs:
        if group.error is not None:
            outcomes.append(GroupOutcome(group.group_id, {}, 0, (str(group.error),)))
            continue
        committed = {key: each for key, each in group.offsets.items() if key.topic in topics}
        wanted, same, left = translated(offset_map, committed, present[group.group_id].offsets)
        moved = {}
        if wanted:
            for key, error in target.alter_group_offsets(group.group_id, wanted).items():
                if error is None:
                    moved[key] = wanted[key].offset
                else:
                    left.append(f"{key}: {error}")
        outcomes.append(GroupOutcome(group.group_id, moved, same, tuple(left)))
    return outcomes
