"""Nodes that must not join a simulated cluster (foreign cluster id, duplicate id, wiped disk), and nodes that may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Env
from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.node.broker_lifecycle import RegistrationRefused
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.directories import NodeCannotStart
from odradek.node.run_node import run_node
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from sim.machine.cluster_members import CLUSTER_ID, Cluster, Shape
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.virtual import format_disks

OTHER_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
Script = Callable[[World, Cluster], Awaitable[None]]


QUICK = {"broker.session.timeout.ms": "400", "broker.heartbeat.interval.ms": "100"}


def play(
    script: Script,
    *,
    dynamic_voters: bool = True,
    nodes: int = 3,
    controllers: int = 0,
    settings: dict[str, str] | None = None,
) -> None:
    """Run the script with a cluster of three nodes that serves."""
    world = World(1, Weather())

    async def main() -> None:
        shape = Shape(nodes, controllers, dynamic_voters=dynamic_voters, settings=settings or {})
        cluster = Cluster(world, shape)
        cluster.format()
        for serving in [member.launch() for member in cluster.members]:
            await serving.wait()
        assert all(member.serves() for member in cluster.members)
        await script(world, cluster)

    world.run(main)


class Newcomer:
    """A node that is not a member of the cluster."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        node_id: int,
        *,
        role: str = "broker,controller",
        host: str = "",
    ) -> None:
        self.world = world
        self.host = host or f"new-{node_id}"
        self.reasons: list[BaseException] = []
        self.gone = world.event()
        settings = dict(cluster.brokers[0].config.explicit)
        listeners = [f"PLAINTEXT://{self.host}:9092"]
        if "controller" in role:
            listeners.append(f"CONTROLLER://{self.host}:9093")
        settings |= {
            "node.id": str(node_id),
            "process.roles": role,
            "listeners": ",".join(listeners),
            "log.dirs": "/data",
        }
        self.config = NodeConfig.from_properties(settings)
        self.log = KeptLog()
        self.ready = False

    def format(self, cluster_id: str = CLUSTER_ID, directory_id: bytes = b"") -> None:
        env = self.world.node_env(self.host)
        format_disks(env, self.config.node_id, cluster_id=cluster_id, directory_id=directory_id)

    async def run(self) -> BaseException | None:
        """Start the node. Return None when it serves, or the reason why it ended."""
        ended = self.world.event()
        reasons = self.reasons

        async def main(env: Env) -> None:
            def started(_: Any) -> None:
                self.ready = True
                ended.set()

            try:
                await run_node(self.config, env, started=started, log=self.log)
            except* (NodeCannotStart, RegistrationRefused) as group:
                reasons.extend(group.exceptions)
                ended.set()
                self.gone.set()

        self.world.start(self.host, main)
        await self.world.wait(ended, 60.0)
        assert ended.is_set(), self.log.fields
        return reasons[0] if reasons else None


@pytest.mark.parametrize("dynamic_voters", [True, False])
def test_a_node_of_another_cluster(dynamic_voters: bool) -> None:
    """A node of another cluster ends with one line that names the foreign controllers. The cluster is not affected."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 7, role="broker")
        node.format(OTHER_CLUSTER_ID)
        reason = await node.run()
        assert isinstance(reason, NodeCannotStart)
        assert OTHER_CLUSTER_ID in str(reason)
        assert "node-1:9093" in str(reason)
        assert "\n" not in str(reason)
        assert all(member.serves() for member in cluster.members)

    play(script, dynamic_voters=dynamic_voters)


def test_a_broker_with_the_id_of_a_voter() -> None:
    """A broker whose node.id belongs to a voter is refused before it registers."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 2, role="broker")
        node.format()
        reason = await node.run()
        assert isinstance(reason, NodeCannotStart)
        assert "node.id 2" in str(reason)

    play(script)


def test_a_broker_with_the_id_of_another() -> None:
    """A broker with the id of a live one gets DUPLICATE_BROKER_REGISTRATION, and ends if the other broker's
    session does not expire in time."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 2, role="broker")
        node.format()
        reason = await node.run()
        assert isinstance(reason, RegistrationRefused)
        assert "another running broker has the node.id 2" in str(reason)

    play(script, controllers=3)


def test_of_two_live_copies_of_a_disk_one_ends() -> None:
    """Two nodes run with copies of one disk and take the registration from each other. One notices and ends."""

    async def script(world: World, cluster: Cluster) -> None:
        copies = [Newcomer(world, cluster, 7, role="broker", host=host) for host in ("a", "b")]
        for copy in copies:
            copy.format(directory_id=b"directory 7 ....")
            assert await copy.run() is None
        deadline = world.now + 120.0
        while not any(copy.gone.is_set() for copy in copies):
            assert world.now < deadline
            await world.sleep(0.1)
        (ended,) = [copy for copy in copies if copy.gone.is_set()]
        (other,) = [copy for copy in copies if copy is not ended]
        (reason,) = ended.reasons
        assert isinstance(reason, RegistrationRefused)
        assert f"another process at {other.host}:9092 registers as broker 7" in str(reason)
        times = other.log.events.count("broker.registered")
        await world.sleep(1.0)
        assert not other.gone.is_set()
        assert other.log.events.count("broker.registered") == times

    play(script, nodes=1, settings=QUICK)


def former_registration(node_id: int, directory_id: bytes) -> BrokerRegistrationRequest:
    """Make the registration that an earlier process with the same disk sent."""
    return BrokerRegistrationRequest(
        node_id,
        CLUSTER_ID,
        b"a former process",
        [Listener("PLAINTEXT", "former", 9092, 0)],
        [Feature(name, low, high) for name, (low, high) in sorted(SUPPORTED_FEATURES.items())],
        None,
        False,
        [directory_id],
        -1,
    )


async def ask_controller(world: World, cluster: Cluster, request: Any) -> Any:
    """Send a request to the active controller; return the answer."""
    (active,) = [
        member.node.metadata
        for member in cluster.members
        if member.node is not None and member.node.metadata is not None and member.node.metadata.is_active
    ]
    answers: list[Any] = []
    active.submit(request).on_release(answers.append)
    while not answers:
        await world.sleep(0.01)
    return answers[0]


def test_late_requests_of_a_former_process_end_nobody() -> None:
    """Requests of a dead process may arrive after its successor registered. The successor then registers again."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 7, role="broker")
        node.format(directory_id=b"directory 7 ....")
        assert await node.run() is None
        for wait_seconds in (0.0, 0.0, 0.0, 0.1):
            before = node.log.events.count("broker.registered")
            await world.sleep(wait_seconds)
            answer = await ask_controller(world, cluster, former_registration(7, b"directory 7 ...."))
            assert answer.error_code == 0
            while node.log.events.count("broker.registered") == before:
                await world.sleep(0.1)
        await world.sleep(1.0)
        assert not node.gone.is_set()
        assert node.log.events.count("broker.registered") == 5

    play(script, nodes=1, settings=QUICK)


def test_a_broker_that_was_unregistered_while_it_runs_stays_away() -> None:
    """A broker that is unregistered while running continues without a registration, as in Kafka. It registers at its
    next start."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 7, role="broker")
        node.format()
        assert await node.run() is None
        client = AsyncClient(world.node_env("client"), world.tasks, [("node-1", 9092)])
        assert (await client.request(UnregisterBrokerRequest(7))).error_code == 0
        while "broker.unregistered" not in node.log.events:
            await world.sleep(0.1)
        await world.sleep(10.0)
        assert node.log.events.count("broker.registered") == 1
        assert not node.gone.is_set()
        described = await client.request(DescribeClusterRequest())
        assert [each.broker_id for each in described.brokers] == [1]

    play(script, nodes=1, settings=QUICK)


def test_a_broker_joins() -> None:
    """A new broker needs only the cluster's id and the controllers' addresses to join."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 7, role="broker")
        node.format()
        assert await node.run() is None
        client = AsyncClient(world.node_env("client"), world.tasks, [(node.host, 9092)])
        described = await client.request(DescribeClusterRequest())
        assert [each.broker_id for each in described.brokers] == [1, 2, 3, 7]

    play(script)


def test_a_controller_joins_and_is_told_that_it_does_not_vote() -> None:
    """A new controller observes until it is added as a voter (KIP-853). It is registered as a controller already
    (KIP-919)."""

    async def script(world: World, cluster: Cluster) -> None:
        node = Newcomer(world, cluster, 7)
        node.format()
        assert await node.run() is None
        assert "quorum.not_a_voter" in node.log.events
        client = AsyncClient(world.node_env("client"), world.tasks, [(node.host, 9093)])
        while True:
            answer = await client.request(DescribeClusterRequest(endpoint_type=2))
            found = {each.broker_id: (each.host, each.port) for each in answer.brokers}
            if set(found) == {1, 2, 3, 7}:
                break
            await world.sleep(0.1)
        assert found[7] == ("new-7", 9093)
        assert answer.controller_id in (1, 2, 3)

    play(script)


def test_a_voter_with_a_wiped_disk() -> None:
    """A voter with a wiped disk gets a new directory id. It counts as a new replica without a vote (KIP-853), and logs
    what to do."""

    async def script(world: World, cluster: Cluster) -> None:
        victim = cluster.brokers[1]
        await victim.kill("all")
        node = Newcomer(world, cluster, 2)
        node.format()
        assert await node.run() is None
        assert "quorum.other_directory" in node.log.events

    play(script)


def test_a_lone_voter_says_what_it_waits_for() -> None:
    """A voter waits for a majority before it is ready. Its log names the voters that must be started."""
    world = World(1, Weather())

    async def main() -> None:
        cluster = Cluster(world, Shape(dynamic_voters=True))
        cluster.format()
        log = KeptLog()
        ready = world.event()

        async def run(env: Env) -> None:
            await run_node(cluster.members[0].config, env, started=lambda _: ready.set(), log=log)

        world.start(cluster.members[0].name, run)
        await world.sleep(30.0)
        assert not ready.is_set()
        assert log.events.count("node.waiting") == 1

    world.run(main)
