"""Sizes of a group's records, to be checked against the limits of a batch and of a string. PURE.

Kafka detects that a record is too large only when it encodes or appends the record. Here the size is checked
before the decision, so that only one request fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.data_plane.groups.classic_group import ClassicGroup
from odradek.wire.messages.join_group import JoinGroupRequest

STRING_BYTES_MAX = 32_767
"""The largest size of a string in a record or a response, in bytes."""
GROUP_OVERHEAD_BYTES = 160
"""The bytes of a batch's header, a record's frame, and a group's fields of fixed size."""
MEMBER_OVERHEAD_BYTES = 32
PROTOCOL_OVERHEAD_BYTES = 64
DASHED_UUID_BYTES = 36


def utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode())


def stem_of(client_id: str, request: JoinGroupRequest) -> str:
    """Return the first part of a new member's id. A dash and a random UUID are appended to it."""
    return client_id if request.group_instance_id is None else request.group_instance_id


def has_too_long_id(client_id: str, request: JoinGroupRequest) -> bool:
    """True if the id that a new member would get is longer than a string may be.

    The answer then is UNKNOWN_SERVER_ERROR, as in Kafka.
    """
    if request.member_id:
        return False
    return utf8_size(stem_of(client_id, request)) + 1 + DASHED_UUID_BYTES > STRING_BYTES_MAX


def protocols_bytes(request: JoinGroupRequest) -> int:
    """Count the bytes of all protocols that a member offers.

    All of them stay in memory while the member exists; only the chosen one is part of the group's record.
    """
    return sum(
        utf8_size(each.name) + len(each.metadata) + PROTOCOL_OVERHEAD_BYTES for each in request.protocols
    )


def group_bytes(group: ClassicGroup, given: Mapping[str, bytes]) -> int:
    """Estimate the size of a group's record as a batch, in bytes.

    The result is a close upper bound. Assignments in `given`, if there are any, replace the present ones.
    """
    protocol = group.protocol or ""
    of_group = (group.group_id, group.protocol_type or "", protocol, group.leader or "")
    return (
        GROUP_OVERHEAD_BYTES
        + sum(map(utf8_size, of_group))
        + sum(
            len(given.get(member.member_id, b"") if given else member.assignment)
            + len(member.metadata_for(protocol))
            + utf8_size(member.member_id)
            + utf8_size(member.client_id)
            + utf8_size(member.group_instance_id or "")
            + utf8_size(member.client_host)
            + MEMBER_OVERHEAD_BYTES
            for member in group.members.values()
        )
    )
