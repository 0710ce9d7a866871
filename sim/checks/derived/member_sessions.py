"""Check of sessions: each member of a loaded group has a session that ends, so a silent member loses its partitions. PURE.

Sessions are not in the log. A coordinator that has loaded its groups begins the sessions of all members anew.
"""

from __future__ import annotations

from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.state import GroupsState

__all__ = ["endless_session"]

NEVER = float("inf")


def endless_session(machine: GroupMachine, state: GroupsState) -> str | None:
    """Describe a member that may stay silent for ever; None if the sessions of all members end."""
    groups = machine.membership.groups
    for group_id, stored in state.metadata.items():
        if stored.members and group_id not in groups:
            return f"nobody waits for the members of {group_id}"
    for group_id, group in groups.items():
        for member in group.members.values():
            if member.timer_ms == NEVER:
                return f"the session of {member.member_id} in {group_id} never ends"
    timers = machine.consumers.timers
    for group_id, consumers in state.consumers.items():
        for member_id in consumers.members:
            if timers.session_ends_ms(group_id, member_id) == NEVER:
                return f"the session of {member_id} in {group_id} never ends"
    return None
