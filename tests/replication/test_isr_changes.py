"""A leader's proposals of in-sync replicas to the controller, with the broker epochs of these replicas."""

from __future__ import annotations

from typing import Any

import structlog

from odradek.data_plane.replication.isr_changes import AlterPartitionSender
from odradek.data_plane.replication.partition import Partition
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_partition import AlterPartitionRequest
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.replication.test_isr import BROKER_EPOCH, Cluster, Leader

OWN_EPOCH = 40


class Controller:
    """A controller that receives requests and answers none."""

    def __init__(self) -> None:
        self.heard: list[dict[int, int]] = []
        """The proposed ISR of each request: broker ids and broker epochs."""

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        assert isinstance(message, AlterPartitionRequest)
        states = message.topics[0].partitions[0].new_isr_with_epochs
        self.heard.append({state.broker_id: state.broker_epoch for state in states})
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


class Told(Cluster):
    """A leader's view of the cluster that sends proposals to the controller."""

    def __init__(self, world: World, controller: Controller) -> None:
        super().__init__()
        env = world.node_env("leader")
        self.sender = AlterPartitionSender(
            1,
            controller,
            env.clock,
            world.tasks,
            lambda: OWN_EPOCH,
            timeout_ms=1000,
            after_answer=lambda: None,
            log=structlog.get_logger(),
        )

    def alter_isr(self, partition: Partition) -> None:
        self.sender.submit(partition)


def test_a_proposal_is_for_the_incarnation_that_fetched() -> None:
    """KIP-903: fetches of a follower's earlier incarnation must not bring its empty successor into the ISR."""

    async def script() -> None:
        controller = Controller()
        leader = Leader((1, 2), records=3)
        cluster = Told(world, controller)
        leader.partition._cluster = leader.cluster = cluster
        leader.fetch(3, 3)
        while not controller.heard:
            await world.sleep(0.01)
        cluster.known[3] = BROKER_EPOCH + 1
        leader.fetch(3, 0, broker_epoch=BROKER_EPOCH + 1)
        count = len(controller.heard)
        while len(controller.heard) < count + 2:
            await world.sleep(0.01)
        assert all(heard[3] == BROKER_EPOCH for heard in controller.heard)
        assert all(heard[1] == OWN_EPOCH for heard in controller.heard)
        leader.told(8, (1, 2))
        count = len(controller.heard)
        await world.sleep(5)
        assert len(controller.heard) <= count + 1, "an outdated proposal goes on"

    world = World(1, Weather())
    world.run(script)
