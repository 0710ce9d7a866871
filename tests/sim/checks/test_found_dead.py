"""A controller that finds a living broker dead fails the run, unless the network has refused connections."""

from __future__ import annotations

import pytest

from sim.checks.found_dead import FoundDead
from sim.history import SafetyViolation
from tests.cluster.disks.test_troubled_disks import Troubled


def test_a_living_broker_is_found_dead_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decision is right for a killed process and wrong for a living one. It is permitted after the network has
    refused connections."""

    async def script(case: Troubled) -> None:
        check = FoundDead(case.cluster)
        refuted: list[Exception] = []
        monkeypatch.setattr(case.world, "refute", refuted.append)  # The run itself must go on.
        controller, epoch = case.cluster.controllers[0], case.broker(3).replication.broker_epoch
        check.found_dead(controller, 3, epoch - 1)
        assert (check.right, check.wrong, refuted) == (1, 0, [])
        check.found_dead(controller, 3, epoch)
        with pytest.raises(SafetyViolation, match="has found the living node-3 dead"):
            raise refuted.pop()
        case.world.fabric.close_link(controller.name, case.member(3).name, "refuses")
        check.found_dead(controller, 3, epoch)
        assert (check.right, check.wrong, refuted) == (1, 2, [])
        await case.member(3).kill("all")
        check.found_dead(controller, 3, epoch)
        assert (check.right, check.wrong) == (2, 2)

    Troubled().play(script)
