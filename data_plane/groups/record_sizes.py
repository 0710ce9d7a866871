"""The size of a group's records: a batch has a limit, and so has each string. PURE.

Kafka finds a record too large when it encodes or appends it. Here sizes are checked before the decision, so that only
the one request fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.data_plane.groups.classic_group import ClassicGroup
from odradek.wire.messages.join_group import JoinGroupRequest

STRING_BYTES_MAX = 32_767
"""The bytes of a string in any record or answer."""
GROUP_OVERHEAD_BYTES = 160
"""A batch's header, a record's frame, the fixed fields of a group."""
MEMBER_OVERHEAD_BYTES = 32
PROTOCOL_OVERHEAD_BYTES = 64
DASHED_UUID_BYTES = 36


def utf8_size(text: str) -> int:
    """Count the bytes that a text has in a record."""
    return len(text) if text.isascii() else len(text.encode())


def stem_of(client_id: str, request: JoinGroupRequest) -> str:
    """Return the beginning of a new member's id: a dash and a random id follow."""
    return client_id if request.group_instance_id is None else request.group_instance_id


def has_too_long_id(client_id: str, request: JoinGroupRequest) -> bool:
    """True if a new member's id would be longer than a string may be. Kafka's answer is UNKNOWN_SERVER_ERROR then."""
    if request.member_id:
        return False
    return utf8_size(stem_of(client_id, request)) + 1 + DASHED_UUID_BYTES > STRING_BYTES_MAX


def protocols_bytes(request: JoinGroupRequest) -> int:
    """Count the bytes of all protocols that a member offers. They stay in memory as long as the member lives; only
    the chosen protocol goes into the group's record.
    """
    return sum(
        utf8_size(each.name) + len(each.metadata) + PROTOCOL_OVERHEAD_BYTES for each in request.protocols
    )


def group_bytes(group: ClassicGroup, given: Mapping[str, bytes]) -> int:
    """Estimate the size of a group's record as a batch; a close upper bound. `given` are assignments in place of
    its own.
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
