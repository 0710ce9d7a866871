"""Producer ids are never given out twice, by any controller in blocks or by brokers one by one (KIP-730)."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from sim.machine.world import World
from tests.quorum.voters.controllers import Controllers, play, register


def ids_of(answer: AllocateProducerIdsResponse) -> range:
    assert answer.error_code == 0
    return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def test_blocks_asked_for_before_one_is_committed_are_different() -> None:
    """Several blocks are requested before one is committed. The blocks differ, since each decision sees the earlier
    decisions."""

    async def script(world: World, controllers: Controllers) -> None:
        epoch = (await controllers.ask(register(100))).broker_epoch
        leader = await controllers.leader()
        before = leader.service.quorum.decisions.high_watermark
        answers: list[Any] = []
        for _ in range(5):
            leader.service.submit(AllocateProducerIdsRequest(100, epoch)).on_release(answers.append)
        assert leader.service.quorum.decisions.high_watermark == before
        assert answers == []
        await controllers.until(lambda: len(answers) == 5)
        given = [producer_id for answer in answers for producer_id in ids_of(answer)]
        assert len(set(given)) == len(given) == 5000

    play(script)


@pytest.mark.parametrize("keep", ["all", "synced"])
def test_a_new_controller_gives_no_block_again(keep: str) -> None:
    """Controllers die and others take over.

    No block is given out twice, since a block is answered only after its record is committed.
    """

    async def script(world: World, controllers: Controllers) -> None:
        epoch = (await controllers.ask(register(100))).broker_epoch
        given: list[int] = []
        answers: list[Any] = []
        for _ in range(4):
            leader = await controllers.leader()
            given += ids_of(await controllers.ask(AllocateProducerIdsRequest(100, epoch)))
            # These requests may have been decided when the controller dies, but have no answer.
            for _ in range(3):
                leader.service.submit(AllocateProducerIdsRequest(100, epoch)).on_release(answers.append)
            await world.sleep(0.003)
            controllers.crash(leader.node_id, keep)
            controllers.start(leader.node_id)
        given += ids_of(await controllers.ask(AllocateProducerIdsRequest(100, epoch)))
        given += [
            producer_id for answer in answers if not answer.error_code for producer_id in ids_of(answer)
        ]
        assert len(set(given)) == len(given)

    play(script)
