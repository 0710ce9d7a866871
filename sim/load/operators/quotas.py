"""An operator that sets and removes the quotas of its own clients while they send requests. PORTED.

During the storm nothing is checked; the operator only records the quotas that it sets. When all faults have ended,
these rules are checked:

* Every broker has the quotas that were last acknowledged.
* If several levels have a quota, the most specific one limits the client, and the client is not starved.
* When its quota is removed, the client continues at once, although it had exceeded the quota.
* A quota on the client id of a broker's fetcher does not slow that fetcher, since nodes are exempt from quotas.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.client.admin import NewTopic
from odradek.client.admin.admin_quotas import (
    QuotaAlteration,
    QuotaEntity,
    alter_client_quotas,
)
from odradek.client.core.client_config import ClientConfig
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.history import SafetyViolation
from sim.load.operators.duty import CALL_SECONDS, Duty, Possible, Site

TOPIC = "rationed"
CLIENT = "rationed-client"
PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
BATCH_BYTES = 10_000
RATE = 5_000.0
"""The client's quota in the final checks, in bytes per second."""
WRONG_RATE = 1e7
"""The quota of less specific levels in the final checks, in bytes per second."""
BURST_SECONDS = 10
"""A client may use up the quota of this many seconds in one burst. The number follows from the default of
`quota.window.num`.
"""
MEASURED_SECONDS = 10.0
BATCHES_MAX = 100
"""How many batches the client tries to send: far more than the quota allows in `MEASURED_SECONDS`."""
FREE_BATCHES = 8
FREE_SECONDS_MAX = 8.0
"""The longest time in seconds that `FREE_BATCHES` may take without a quota. With the quota these batches would take
twice as long.
"""
NODES_SECONDS_MAX = 30.0
REFUSED = (ErrorCode.INVALID_REQUEST,)
OF_BOTH: QuotaEntity = (("client-id", CLIENT), ("user", None))
OF_CLIENT: QuotaEntity = (("client-id", CLIENT),)
OF_DEFAULTS: QuotaEntity = (("client-id", None), ("user", "nobody"))
ENTITIES = (OF_BOTH, OF_CLIENT, OF_DEFAULTS, (("client-id", "another"),))
VALUES: dict[str, Sequence[float | None]] = {
    PRODUCE: (1_000.0, RATE, 1e6, None),
    FETCH: (1_000.0, RATE, 1e6, None),
    REQUEST: (0.01, 1.0, 100.0, None),
}

__all__ = ["TOPIC", "Quotas"]


class Quotas(Duty):
    """An operator, and the client whose quotas it changes."""

    calm_seconds_max = 1.0

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._values: dict[tuple[QuotaEntity, str], Possible[float | None]] = {}
        config = ClientConfig(client_id=CLIENT, request_timeout=CALL_SECONDS, fail_fast=False)
        self._rationed = self._client_of(config)
        self._patient = self._client_of(
            ClientConfig(client_id=CLIENT, request_timeout=NODES_SECONDS_MAX, fail_fast=False)
        )

    def _client_of(self, config: ClientConfig) -> AsyncClient:
        return AsyncClient(self.world.node_env(self.site.name), self.world.tasks, self.load.bootstrap, config)

    async def setup(self) -> None:
        configs = {"min.insync.replicas": self.cluster.shape.settings["min.insync.replicas"]}
        wanted = [NewTopic(TOPIC, 1, self.site.replicas, configs)]
        await self.load.create_topics(self.client, wanted, self.load.request_seconds)

    async def step(self) -> None:
        key = self.random.choice(list(VALUES))
        await self._alter(self.random.choice(ENTITIES), key, self.random.choice(VALUES[key]))
        await self._produce(self._rationed, self.random.choice((1, -1)))
        await self._fetch(self._rationed)

    async def _alter(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        possible = self._values.setdefault((entity, key), Possible(None))
        altering = alter_client_quotas(
            self.client.core, [QuotaAlteration(entity, {key: value})], timeout=CALL_SECONDS
        )
        try:
            (error,) = (await self.client.run(altering)).values()
            if error is not None:
                raise error
        except KafkaError as error:
            if error.code not in REFUSED:
                possible.ask(value)
            raise
        except ClientError:
            possible.ask(value)
            raise
        possible.acknowledge(value)

    async def _leader(self, client: AsyncClient) -> tuple[bytes, int]:
        """Return the topic's id and its leader. Raises `KafkaError`."""
        topic = (await client.metadata([TOPIC])).topic(TOPIC)
        leader = topic.partitions[0].leader
        if leader not in client.core.cluster.brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return topic.topic_id, leader

    async def _produce(self, client: AsyncClient, acks: int) -> int:
        """Append one batch, and return the leader's id. Raises `KafkaError`, `ClientError`."""
        topic_id, leader = await self._leader(client)
        builder = RecordBatchBuilder()
        builder.append(self.world.node_env(self.site.name).clock.wall_ms(), None, bytes(BATCH_BYTES))
        data = PartitionProduceData(0, bytes(builder.build()))
        request = ProduceRequest(
            None, acks, int(CALL_SECONDS * 1000), [TopicProduceData(TOPIC, topic_id, [data])]
        )
        answer = await client.request(request, node=leader)
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            raise KafkaError(ErrorCode(code))
        return leader

    async def _fetch(self, client: AsyncClient) -> None:
        topic_id, leader = await self._leader(client)
        wanted = FetchPartition(0, -1, 0, -1, -1, 2 * BATCH_BYTES)
        topics = [FetchTopic(TOPIC, topic_id, [wanted])]
        state = ReplicaState(-1, -1)
        await client.request(
            FetchRequest(None, -1, state, 0, 1, 2 * BATCH_BYTES, 0, 0, -1, topics, [], ""), node=leader
        )

    # -- final checks ---------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that each broker has the acknowledged quotas, and that quotas limit the client. Raises
        `SafetyViolation`.
        """
        await self.must_hold(self._wrong)
        for entity, key in list(self._values):
            await self._set(entity, key, None)
        if not self.cluster.shape.guarded:
            # Skip these checks in a cluster with authorization. There clients without a login are super users,
            # which are exempt from quotas.
            await self._check_rate()
            await self._check_release()
            if self.site.replicas > 1:
                await self._check_nodes()
        self._rationed.close()
        self._patient.close()

    async def _wrong(self) -> str | None:
        """Describe the first broker whose quotas differ from the acknowledged quotas; None if all brokers agree."""
        for member in self.cluster.brokers:
            there = await self._described(member.config.node_id)
            for (entity, key), possible in self._values.items():
                value = there.get((entity, key))
                if not possible.allows(value):
                    return f"{member.name} has {key} {value} of {entity}, acknowledged was {possible}"
        return None

    async def _described(self, node_id: int) -> dict[tuple[QuotaEntity, str], float]:
        answer = await self.client.request(DescribeClientQuotasRequest([], False), node=node_id)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message)
        return {
            (tuple(sorted((each.entity_type, each.entity_name) for each in entry.entity)), value.key): (
                value.value
            )
            for entry in answer.entries
            for value in entry.values
        }

    async def _set(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        """Set a quota, and wait until every broker has it."""

        async def look() -> str | None:
            await self._alter(entity, key, value)
            for member in self.cluster.brokers:
                there = (await self._described(member.config.node_id)).get((entity, key))
                if there != value:
                    return f"{member.name} has {key} {there} of {entity}, and not {value}"
            return None

        await self.must_hold(look)

    async def _move(self, batches: int, seconds: float) -> tuple[int, set[int]]:
        """Append up to `batches` batches within `seconds`. Return how many batches were appended, and the ids of the
        leaders that appended them.
        """
        deadline, moved, leaders = self.world.now + seconds, 0, set()
        while moved < batches and self.world.now < deadline:
            try:
                leaders.add(await self._produce(self._patient, 1))
            except (KafkaError, ClientError) as error:
                self.world.trace.record(self.world.now, self.site.name, "produce", error)
                await self.world.sleep(0.1)
            else:
                moved += 1
        return moved, leaders

    async def _check_rate(self) -> None:
        """Check that a new quota limits a connection that had no quota before. Until this quota is set, the brokers
        have only a quota of another client.
        """
        await self._set(OF_DEFAULTS, PRODUCE, RATE)
        await self._move(1, NODES_SECONDS_MAX)
        await self._set(OF_CLIENT, PRODUCE, WRONG_RATE)
        await self._set(OF_BOTH, PRODUCE, RATE)
        began = self.world.now
        moved, leaders = await self._move(BATCHES_MAX, MEASURED_SECONDS)
        took = self.world.now - began
        most = (len(leaders) or 1) * (RATE * (BURST_SECONDS + took) + 2 * BATCH_BYTES)
        if moved * BATCH_BYTES > most:
            raise SafetyViolation(
                f"{CLIENT} has written {moved} batches in {took:.1f} s, more than its quota"
            )
        if moved < MEASURED_SECONDS * RATE / BATCH_BYTES / 2:
            raise SafetyViolation(f"{CLIENT} starves: {moved} batches in {took:.1f} s")

    async def _check_release(self) -> None:
        """Check that a removed quota no longer delays a client that had exceeded it. A quota of another client
        remains, so brokers keep their quota accounts.
        """
        await self._set(OF_CLIENT, PRODUCE, None)
        await self._set(OF_BOTH, PRODUCE, None)
        await self._move(1, NODES_SECONDS_MAX)
        moved, _ = await self._move(FREE_BATCHES, FREE_SECONDS_MAX)
        if moved < FREE_BATCHES:
            raise SafetyViolation(
                f"{CLIENT} is limited by a quota that was removed: {moved} of {FREE_BATCHES} batches"
            )

    async def _check_nodes(self) -> None:
        fetchers: list[QuotaEntity] = [
            (("client-id", f"broker-{member.config.node_id}-fetcher-0"),) for member in self.cluster.brokers
        ]
        for each in fetchers:
            await self._set(each, FETCH, 500.0)
        began, written = self.world.now, 0
        while written < 4 and self.world.now < began + NODES_SECONDS_MAX:
            try:
                await self._produce(self._patient, -1)
            except (KafkaError, ClientError) as error:
                self.world.trace.record(self.world.now, self.site.name, "produce", error)
                await self.world.sleep(0.1)
            else:
                written += 1
        for each in fetchers:
            await self._set(each, FETCH, None)
        if written < 4:
            raise SafetyViolation(
                f"brokers are limited by a quota: {written} batches in {NODES_SECONDS_MAX} s"
            )
