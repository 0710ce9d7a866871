"""A client that writes and reads as a user whose rights and password an operator keeps changing. PORTED.

The client checks nothing itself: `sim.checks.access` checks the answers to it against the user's rights at each
broker. The client also tries operations that its user may never perform. Now and then it logs in with an older
password on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_security import ClientSecurity
from odradek.client.errors import AuthenticationFailed, ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.security.acls.rules import ANY_HOST, Operation, PatternType, Permission, ResourceType
from odradek.security.sasl_client import Credentials
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.errors import KafkaError
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.structure import Message
from sim.load.workload import Workload
from sim.machine.guards import SASL_PORT

MECHANISM = "SCRAM-SHA-256"
CALL_SECONDS = 6.0
WAIT_MS = (1_000, 5_000)
"""Choices for the longest wait of a fetch at the end of the log, in milliseconds."""
READS_IN_A_ROW = 4
CALM_SECONDS_MAX = 0.15
FETCH_BYTES_MAX = 20_000
OLD_PASSWORD_PROBABILITY = 0.1
NEW_LOGIN_PROBABILITY = 0.05

__all__ = ["MECHANISM", "GuardedClient", "Passwords", "secured_client"]


@attrs.define(eq=False)
class Passwords:
    """The passwords that an operator has set for users."""

    made: dict[bytes, str] = attrs.Factory(dict)
    """The passwords by their SCRAM stored keys. Each password is recorded before the request that sets it."""
    used: dict[str, str] = attrs.Factory(dict)
    """For each user, the password with which the user's client logs in now."""
    known: dict[str, list[str]] = attrs.Factory(dict)
    """For each user, all acknowledged passwords, the newest last."""

    def set(self, user: str, password: str) -> None:
        """Record an acknowledged password of a user."""
        self.known.setdefault(user, []).append(password)


def secured_client(
    load: Workload,
    machine: str,
    user: str,
    password: str,
    mechanism: str,
    servers: Sequence[tuple[str, int]] | None = None,
) -> AsyncClient:
    """Create a client that logs in at `servers`, or at all brokers."""
    config = ClientConfig(
        client_id=machine,
        request_timeout=CALL_SECONDS,
        fail_fast=False,
        security=ClientSecurity(None, Credentials(mechanism, user, password)),
    )
    where = servers or [(host, SASL_PORT) for host, _ in load.bootstrap]
    return AsyncClient(load.world.node_env(machine), load.world.tasks, where, config)


class GuardedClient:
    """The client of one user. Its machine has the user's name."""

    def __init__(
        self, load: Workload, user: str, topics: Sequence[str], partitions: int, passwords: Passwords
    ) -> None:
        self.user = user
        self.is_over = False
        self._load = load
        self._topics = topics
        self._partitions = partitions
        self._passwords = passwords
        self._random = Random(f"{load.world.seed}/{user}")
        self._client: AsyncClient | None = None
        self._positions: dict[tuple[str, int], int] = {}
        self._places: dict[tuple[str, int], tuple[bytes, int]] = {}
        """For each (topic, partition), the topic id and the leader, as last known."""
        self._serial = 0

    async def run(self) -> None:
        """Send one request after another until `is_over`. Errors are only recorded."""
        world, random = self._load.world, self._random
        while not self.is_over:
            await world.sleep(random.uniform(0.0, CALM_SECONDS_MAX) * self._load.pace)
            if self._client is None or random.random() < NEW_LOGIN_PROBABILITY:
                self._log_in()
            try:
                await self._ask()
            except AuthenticationFailed as error:
                world.trace.record(world.now, self.user, "login refused", error)
                self.close()
            except (KafkaError, ClientError) as error:
                world.trace.record(world.now, self.user, "refused", error)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _log_in(self) -> None:
        self.close()
        known = self._passwords.known[self.user]
        is_old = self._random.random() < OLD_PASSWORD_PROBABILITY
        password = self._random.choice(known) if is_old else known[-1]
        self._passwords.used[self.user] = password
        self._client = secured_client(self._load, self.user, self.user, password, MECHANISM)

    async def _ask(self) -> None:
        client = self._client
        assert client is not None
        draw = self._random.random()
        if draw < 0.1:
            await client.request(self._forbidden())
            return
        topic = self._random.choice(self._topics)
        partition = self._random.randrange(self._partitions)
        known = (await client.metadata([topic])).topics.get(topic)
        place = None if known is None else known.partitions.get(partition)
        if known is not None and place is not None and place.leader >= 0:
            self._places[topic, partition] = (known.topic_id, place.leader)
        # A topic that the user may no longer see is requested from the broker that was last known as its leader.
        topic_id, leader = self._places.get((topic, partition), (bytes(16), -1))
        if leader not in client.core.cluster.brokers:
            return
        if draw < 0.5:
            await client.request(self._produce(topic, topic_id, partition), node=leader)
            return
        position, wait_ms = self._positions.get((topic, partition), 0), 0
        for _ in range(READS_IN_A_ROW):
            # The first fetch reaches the end of the log. So the next fetch waits there for a record or a change of
            # rights.
            request = self._fetch(topic, topic_id, partition, position, wait_ms)
            (found,) = (await client.request(request, node=leader)).responses[0].partitions
            if found.error_code:
                return
            position = self._positions[topic, partition] = found.high_watermark
            wait_ms = self._random.choice(WAIT_MS)

    def _produce(self, topic: str, topic_id: bytes, partition: int) -> ProduceRequest:
        self._serial += 1
        builder = RecordBatchBuilder()
        builder.append(0, None, b"%s:%d" % (self.user.encode(), self._serial))
        data = PartitionProduceData(partition, bytes(builder.build()))
        return ProduceRequest(
            None, self._random.choice((-1, 1)), 2_000, [TopicProduceData(topic, topic_id, [data])]
        )

    def _fetch(self, topic: str, topic_id: bytes, partition: int, offset: int, wait_ms: int) -> FetchRequest:
        wanted = FetchPartition(partition, -1, offset, -1, -1, FETCH_BYTES_MAX)
        return FetchRequest(
            None,
            -1,
            ReplicaState(-1, -1),
            wait_ms,
            1,
            FETCH_BYTES_MAX,
            0,
            0,
            -1,
            [FetchTopic(topic, topic_id, [wanted])],
            [],
            "",
        )

    def _forbidden(self) -> Message:
        """Draw a request that only super users may send: it creates an ACL for the user, or a topic."""
        if self._random.random() < 0.5:
            stolen = AclCreation(
                ResourceType.TOPIC,
                "stolen",
                PatternType.LITERAL,
                f"User:{self.user}",
                ANY_HOST,
                Operation.ALL,
                Permission.ALLOW,
            )
            return CreateAclsRequest([stolen])
        return CreateTopicsRequest([CreatableTopic("stolen", 1, 1, [], [])], 2_000, False)
