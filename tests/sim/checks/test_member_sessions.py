"""The check of sessions: a coordinator that restores its groups passes, and a member without a session is found."""

from __future__ import annotations

import pytest

from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.state import GroupsState
from odradek.wire.messages.coordinator_records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from sim.checks.derived.member_sessions import endless_session
from tests.sim.folds.test_folds import data, loaded, record

MEMBER = MemberMetadata("m", None, "c", "h", 1000, 1000, b"", b"")


def state() -> GroupsState:
    """Load a classic group and a consumer group, each with a member."""
    classic = GroupMetadataValue("consumer", 1, "range", "m", 0, [MEMBER])
    consumers = ConsumerGroupMemberMetadataValue(subscribed_topic_names=["t"])
    written = [
        record(GroupMetadataKey("classic"), classic),
        record(ConsumerGroupMetadataKey("new"), ConsumerGroupMetadataValue(1)),
        record(ConsumerGroupMemberMetadataKey("new", "n"), consumers),
    ]
    return loaded([data(0, written)])


@pytest.fixture
def machine() -> GroupMachine:
    """Return a machine that has restored the groups."""
    made = GroupMachine(GroupSettings())
    made.restore(state(), 0, lambda: bytes(16))
    return made


def test_restored_members_have_sessions(machine: GroupMachine) -> None:
    """Each member that a coordinator has restored has a session that ends."""
    assert endless_session(machine, state()) is None


def test_a_group_that_is_not_restored_is_noticed() -> None:
    """A coordinator that has not restored a group is found."""
    assert (
        endless_session(GroupMachine(GroupSettings()), state()) == "nobody waits for the members of classic"
    )


def test_a_classic_member_without_a_session_is_noticed(machine: GroupMachine) -> None:
    """A classic member whose session has no timer is found."""
    machine.membership.groups["classic"].members["m"].timer_ms = float("inf")
    assert endless_session(machine, state()) == "the session of m in classic never ends"


def test_a_consumer_without_a_session_is_noticed(machine: GroupMachine) -> None:
    """A member of a consumer group without a session is found."""
    machine.consumers.timers.forget("new", "n")
    assert endless_session(machine, state()) == "the session of n in new never ends"
