"""Laws that each record of `__consumer_offsets` must obey, whatever has led to it. PURE.

The functions share no rules with the product's code. Each describes the law that is broken, or returns None.

* **Classic groups.** Within one life of a group the generation never falls. All records of one generation that have
  members give the same assignments.
* **Consumer groups** (KIP-848). Within one life the epochs of the group and of its target never fall. The target's
  epoch is never above the group's. A member's epoch falls only when the member leaves.
* **Removed offsets** (KIP-211). Without a request, and as long as the topic stays, an offset is removed only when it has
  expired. The offset of a topic that members read never expires. The offsets of an empty classic group are kept for the
  retention time since its last member left, those of other groups since their commit. An offset that an open
  transaction may change never expires.
"""

from __future__ import annotations

from odradek.wire.codec import decoder
from odradek.wire.errors import ProtocolError
from odradek.wire.messages.coordinator_records import GroupMetadataValue, OffsetCommitValue
from odradek.wire.messages.data_records import ConsumerProtocolSubscription
from sim.checks.folds.consumer_fold import ConsumerFold

__all__ = ["ConsumerMarks", "classic_complaint", "consumer_complaint", "expiry_complaint", "marks_of"]

CONSUMER = "consumer"
"""The protocol type of classic groups whose members read topics."""
FIRST_EPOCH = 1
VERSION_BYTES = 2
GENERATION_MAX = (1 << 31) - 1
ConsumerMarks = tuple[int, int, int]
"""(epoch of a consumer group, epoch of its target, epoch of a member or 0)."""


# --- classic groups


def classic_complaint(before: GroupMetadataValue | None, after: GroupMetadataValue) -> str | None:
    """Describe the law that a classic group's record breaks. `before` is the former record of the same life of the
    group, or None.
    """
    if before is None:
        return None
    if after.generation < before.generation < GENERATION_MAX:
        return f"its generation falls from {before.generation} to {after.generation}"
    if after.generation == before.generation and before.members and after.members:
        given, gives = _assignments(before), _assignments(after)
        if given != gives:
            return f"generation {after.generation} gives {given}, and then {gives}"
    return None


def _assignments(value: GroupMetadataValue) -> dict[str, bytes]:
    """Return the members' assignments. A static member is named by its instance id, since its member id may change."""
    return {each.group_instance_id or each.member_id: bytes(each.assignment) for each in value.members}


# --- consumer groups


def marks_of(group: ConsumerFold | None, member_id: str) -> ConsumerMarks | None:
    """Return the epochs of a consumer group and of one member; None if the group does not exist."""
    return None if group is None else (group.epoch, group.target_epoch, group.member_epoch(member_id))


def consumer_complaint(before: ConsumerMarks | None, after: ConsumerMarks | None) -> str | None:
    """Describe the law that a consumer group's record breaks. The arguments are the epochs before and after the record."""
    if before is None or after is None:
        return None
    epoch, target_epoch, member_epoch = before
    # The first record of a group that was a classic group may have any epoch.
    if FIRST_EPOCH < epoch > after[0]:
        return f"its epoch falls from {epoch} to {after[0]}"
    if FIRST_EPOCH < target_epoch > after[1] >= 0:
        return f"the epoch of its target falls from {target_epoch} to {after[1]}"
    if after[1] != target_epoch and after[1] > max(after[0], FIRST_EPOCH):
        return f"its target is of epoch {after[1]}, and the group of epoch {after[0]}"
    if FIRST_EPOCH <= after[2] < member_epoch:
        return f"a member goes from epoch {member_epoch} to {after[2]}"
    return None


# --- removed offsets


def expiry_complaint(
    topic: str,
    value: OffsetCommitValue,
    groups: tuple[GroupMetadataValue | None, ConsumerFold | None],
    now_ms: int,
    retention_ms: int,
) -> str | None:
    """Explain why an offset may not expire yet; None if it may.

    `groups` has the newest record of the classic group and the model of the consumer group. Each is None if the group is
    of another kind. `now_ms` is the time at which the offset is removed, in milliseconds since 1970.
    """
    classic, consumers = groups
    if consumers is not None and any(topic in consumers.names(each) for each in consumers.profiles):
        return "its group reads the topic"
    since_ms = value.commit_timestamp
    if consumers is None and classic is not None:
        if classic.members and _may_read(classic, topic):
            return "its group has members that may read the topic"
        if not classic.members and classic.protocol_type and classic.current_state_timestamp >= 0:
            since_ms = classic.current_state_timestamp
    if value.expire_timestamp >= 0:
        early_ms = value.expire_timestamp - now_ms
    else:
        early_ms = since_ms + retention_ms - now_ms
    return f"it expires {early_ms} ms later" if early_ms > 0 else None


def _may_read(group: GroupMetadataValue, topic: str) -> bool:
    """True if a member subscribes to the topic, or its subscription is unknown."""
    if group.protocol_type != CONSUMER:
        return True
    return any(topics is None or topic in topics for topics in map(_topics, group.members))


def _topics(member: object) -> list[str] | None:
    """Decode the topics that a member subscribes to; None if its subscription is unreadable."""
    data = bytes(getattr(member, "subscription", b""))
    try:
        # Version 0 has the topics, and each later version only appends fields.
        found, _ = decoder(ConsumerProtocolSubscription, 0)(data, VERSION_BYTES)
    except ProtocolError:
        return None
    return found.topics
