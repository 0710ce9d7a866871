"""Committed offsets while the wall clock of their coordinator jumps."""

from __future__ import annotations

from typing import cast

import pytest

from odradek.data_plane.coordination.shard import CoordinatorHost
from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.offsets import FetchOffsets
from odradek.env.agreed_clock import INTERVAL_MS
from tests.groups.test_shard import ALONE, Case, run

DAY_MS = 86_400_000
CHECK_SECONDS = 60
SETTINGS = GroupSettings(offsets_retention_check_interval_ms=CHECK_SECONDS * 1000)
"""Settings with which offsets are kept for seven days."""


class Watched:
    """A coordinator that checks for expired offsets once a minute, and one offset of an empty group."""

    def __init__(self) -> None:
        self.case = Case(ALONE)
        run(self.case.shard.load())
        coordinator = GroupCoordinator(cast("CoordinatorHost", self.case.broker), SETTINGS)
        coordinator.shards[0] = self.case.shard
        coordinator._set_expiry()
        self.case.commit()

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock."""
        self.case.broker.clock.jumped_ms += milliseconds

    def offsets_after(self, milliseconds: int) -> int:
        """Let time pass, and run all checks that become due. Return how many offsets are left."""
        for _ in range(milliseconds // (1000 * CHECK_SECONDS)):
            self.case.pass_seconds(CHECK_SECONDS)
        return len(self.case.ask(FetchOffsets("g")).answers[0].offsets)


def test_one_jump_forward_expires_no_offset_until_it_is_believed() -> None:
    """After a jump forward, no offset expires until the clock has kept to the new time."""
    watched = Watched()
    watched.jump(7 * DAY_MS)
    assert watched.offsets_after(INTERVAL_MS) == 1
    assert watched.offsets_after(INTERVAL_MS) == 0


@pytest.mark.parametrize("jump_ms", [7 * DAY_MS, -7 * DAY_MS], ids=["forward", "backward"])
def test_a_jump_that_is_taken_back_expires_nothing(jump_ms: int) -> None:
    """If a jump is reversed, offsets from before the jump and offsets committed during it are all kept."""
    watched = Watched()
    watched.jump(jump_ms)
    assert watched.offsets_after(INTERVAL_MS - 1000 * CHECK_SECONDS) == 1
    watched.case.commit()
    watched.jump(-jump_ms)
    assert watched.offsets_after(3 * INTERVAL_MS) == 1


def test_offsets_that_expire_by_both_clocks_go() -> None:
    """An offset that is too old by both possible times expires, so that offsets are not kept for ever."""
    watched = Watched()
    watched.jump(-DAY_MS)
    assert watched.offsets_after(7 * DAY_MS) == 1
    assert watched.offsets_after(DAY_MS + INTERVAL_MS) == 0
