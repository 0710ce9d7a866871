"""Power losses in a simulated cluster whose disks keep only what was synced: the replica with the most records leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations

import pytest

from odradek.wire.errors import ErrorCode
from tests.cluster.disks.test_troubled_disks import Troubled

NODES = (1, 2, 3)
ORDERS = pytest.mark.parametrize("order", list(permutations(NODES)), ids=str)


def unclean_elections(case: Troubled) -> int:
    """Count the unclean elections of all partitions."""
    node = case.cluster.members[0].node
    assert node is not None
    assert node.metadata is not None
    return node.metadata.decided.unclean_elections


def is_up(case: Troubled, node_id: int) -> bool:
    node = case.member(node_id).node
    return case.member(node_id).serves() and node is not None and node.broker is not None


async def written(case: Troubled, batches: int) -> None:
    """Write `count` batches that all three replicas have, but have not synced."""
    for _ in range(batches):
        assert await case.write() == ErrorCode.NONE


async def return_in(case: Troubled, order: tuple[int, ...]) -> None:
    """Start the brokers one after another in this order; wait until one leads."""
    for node_id in order:
        case.member(node_id).launch()
        await case.until(lambda node_id=node_id: is_up(case, node_id), writing=False)  # type: ignore[misc]
    await case.until(lambda: all(case.seen_by(each).leader > 0 for each in NODES), writing=False)


def play(script: Callable[[Troubled], Awaitable[None]], seed: int) -> None:
    """Run a script with `min.insync.replicas` 2. Logs are synced only where the script asks for it."""
    settings = {"min.insync.replicas": "2", "log.flush.scheduler.interval.ms": "9223372036854775807"}
    Troubled(log_dirs=1, settings=settings, seed=seed).play(script)


@ORDERS
@pytest.mark.parametrize("best", NODES)
def test_all_lose_power_and_the_longest_log_leads(order: tuple[int, ...], best: int) -> None:
    """All replicas lose power, and one had synced later than the others. It leads after any order of restarts, and
    keeps all its records."""

    async def script(case: Troubled) -> None:
        await written(case, 3)
        for node_id in NODES:
            case.broker(node_id).partition("t", 0).log.flush()
        await written(case, 3)
        case.broker(best).partition("t", 0).log.flush()
        kept = list(case.acknowledged)
        await written(case, 3)
        for node_id in NODES:
            await case.member(node_id).kill("synced")
        await return_in(case, order)
        assert case.seen_by(2).leader == best
        assert unclean_elections(case) == 1
        case.acknowledged = kept
        await case.until(lambda: sorted(case.seen_by(2).isr) == list(NODES))
        await case.check_nothing_is_lost()

    play(script, seed=best)


@ORDERS
@pytest.mark.parametrize("clean", NODES)
def test_the_replica_that_stopped_cleanly_leads(order: tuple[int, ...], clean: int) -> None:
    """Two replicas lose power, and the third stops cleanly without a controller. The third one leads, and no record is
    lost."""

    async def script(case: Troubled) -> None:
        await written(case, 5)
        controller = case.cluster.members[0]
        assert controller not in [case.member(each) for each in NODES]
        await controller.kill("synced")
        for node_id in NODES:
            if node_id != clean:
                await case.member(node_id).kill("synced")
        member = case.member(clean)
        running = member.running
        assert running is not None
        member.ask_to_stop()
        await running.ended.wait()
        controller.launch()
        await return_in(case, order)
        assert case.seen_by(2).leader == clean
        assert unclean_elections(case) == 0
        await case.until(lambda: sorted(case.seen_by(2).isr) == list(NODES))
        await case.check_nothing_is_lost()

    play(script, seed=clean)
