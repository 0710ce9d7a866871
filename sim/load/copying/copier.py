"""One run of a copier's process, with the product's own consumer and producer: one transaction after another. PORTED."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random

from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.client.core.coordinator_finder import CoordinatorFinder, CoordinatorKind
from odradek.client.errors import (
    ClientError,
    IllegalTransactionCall,
    RequestTimedOut,
    TransactionFatalError,
)
from odradek.client.producer.producer_upkeep import Identity
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.client.shells.aio_producer import AsyncProducer
from odradek.env.ports import Env, TaskGroup
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import KafkaError
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.topic_partition import TopicPartition
from sim.load.copying.copy_ledger import Copy, CopyLedger, Outcome, copy_value
from sim.load.copying.copy_plan import CopyPlan
from sim.load.workload import (
    FETCH_BYTES_MAX,
    ROT_SECONDS,
    SLOW_HEARTBEAT_MS,
    SLOW_POLL_INTERVAL_MS,
    SLOW_REST_SECONDS,
    SLOW_SESSION_MS,
    Workload,
)

SOURCE, SINK = "copy-source", "copy-sink"
PARTITIONS = 2
"""The number of partitions of each topic."""
GROUP = "copiers"
POLL_SECONDS = 0.5
HEARTBEAT_MS, POLL_INTERVAL_MS = 300, 12_000
POLL_WAIT_MS_MAX = 4_000
"""The longest `fetch.max.wait.ms`. It must be shorter than the consumer's request timeout of five seconds."""
CLOSE_SECONDS = 3.0
ENDING_TRIES = 5
"""How many times a commit or an abort may time out before the producer is closed."""
REST_SECONDS = 0.1
ECHO_SECONDS = 2.0
ECHO_VERSION = 5
"""The first version of EndTxn that bumps the producer epoch."""
EXPLICIT_LEVEL = 1
"""The highest level of `transaction.version` at which clients add partitions and offsets by separate requests."""

__all__ = ["GROUP", "PARTITIONS", "SINK", "SOURCE", "CopierLife"]


class _GivenUp(Exception):
    """Raised if the producer can no longer continue, or its calls have timed out too often."""


class CopierLife:
    """Copies the partitions that the group assigns to it until it is stopped or fenced. This object is also the
    rebalance listener of the consumer.
    """

    def __init__(
        self,
        load: Workload,
        ledger: CopyLedger,
        name: str,
        transactional_id: str,
        plan: CopyPlan,
        partition: int | None,
    ) -> None:
        """Create the copier. It copies only `partition`, or with None all partitions that the group assigns to it."""
        self._partition = partition
        self._load = load
        self._ledger = ledger
        self._name = name
        self._transactional_id = transactional_id
        self._plan = plan
        self._random = Random(f"{load.world.seed}/{name}")
        self._echoes = Random(f"{load.world.seed}/{name}/echoes")
        self._ended: EndTxnRequest | None = None
        """The EndTxn request of the previous transaction."""
        self._serial = 0
        self._polled: dict[TopicPartition, int] = {}
        """The offset at which the last poll began, for each partition that has been assigned ever since that poll."""
        self.is_over = False
        """If set to True, the process ends after its present transaction."""

    async def main(self, env: Env, tasks: TaskGroup) -> None:
        """Run `init_transactions`, then copy until stopped or done."""
        self._env = env
        servers = ",".join(f"{host}:{port}" for host, port in self._load.bootstrap)
        is_slow = self._load.is_slow
        common = {"bootstrap.servers": servers, "client.id": self._name}
        self._producer = AsyncProducer(
            env,
            tasks,
            {
                **common,
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": str(self._plan.timeout_ms),
                "linger.ms": str(self._plan.linger_ms),
                # A batch must fit into a segment, which may be as small as 2,000 bytes.
                "batch.size": "500",
                "max.block.ms": "10000",
                "request.timeout.ms": str(self._plan.request_ms),
                "delivery.timeout.ms": str(2 * self._plan.request_ms),
            },
        )
        self._consumer = AsyncConsumer(
            env,
            tasks,
            {
                **common,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "request.timeout.ms": "5000",
                "session.timeout.ms": str(SLOW_SESSION_MS if is_slow else self._plan.session_ms),
                "heartbeat.interval.ms": str(SLOW_HEARTBEAT_MS if is_slow else HEARTBEAT_MS),
                "max.poll.interval.ms": str(SLOW_POLL_INTERVAL_MS if is_slow else POLL_INTERVAL_MS),
                "fetch.max.wait.ms": str(min(self._load.fetch_wait_ms, POLL_WAIT_MS_MAX)),
                "max.poll.records": str(self._plan.records_max),
                "fetch.max.bytes": str(FETCH_BYTES_MAX),
            },
        )
        if self._plan.is_explicit:
            self._producer.limit_transaction_version(EXPLICIT_LEVEL)
        try:
            await self._patiently(self._producer.init_transactions)
            if self._partition is None:
                self._consumer.subscribe([SOURCE], listener=self)
            else:
                self._consumer.assign([TopicPartition(SOURCE, self._partition)])
            while not (self.is_over or self._ledger.is_done):
                await self._turn()
        except (_GivenUp, TransactionFatalError) as error:
            self._note(error)
        await self._close()

    def _note(self, error: Exception) -> None:
        self._load.world.trace.record(self._load.world.now, self._name, "copy", error)

    async def _rest(self, seconds: float) -> None:
        clock = self._env.clock
        await clock.sleep_until(clock.monotonic() + seconds)

    async def _close(self) -> None:
        for close in (self._producer.close, self._consumer.close):
            try:
                await close(CLOSE_SECONDS)
            except (KafkaError, ClientError) as error:
                self._note(error)

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        """Repeat a call that times out, up to `ENDING_TRIES` times. Raises `_GivenUp` after that."""
        for _ in range(ENDING_TRIES):
            try:
                await call()
            except RequestTimedOut as error:
                self._note(error)
                continue
            return
        raise _GivenUp(f"{self._name} has lost its patience")

    async def _turn(self) -> None:
        """Poll once, and copy the records in one transaction."""
        consumer = self._consumer
        try:
            records = await consumer.poll(POLL_SECONDS)
            if not records:
                await self._look_where_it_is()
                if self._load.is_slow and not self._load.is_over:
                    await self._rest(SLOW_REST_SECONDS)
                return
        except (KafkaError, ClientError) as error:
            self._note(error)
            await self._rest(ROT_SECONDS if isinstance(error.__cause__, CorruptBatch) else REST_SECONDS)
            return
        self._polled.clear()
        for record in records:
            key = TopicPartition(record.topic, record.partition)
            self._polled.setdefault(key, record.offset)
        await self._copy(records)

    async def _look_where_it_is(self) -> None:
        """Record the consumer's positions in the ledger. Between two transactions they equal the group's committed
        offsets.
        """
        if self._ledger.ends is not None:
            for key in sorted(self._consumer.assignment()):
                self._ledger.advance({key.partition: await self._consumer.position(key, POLL_SECONDS)})

    async def _copy(self, records: Sequence[ConsumerRecord]) -> None:
        plan, random, producer = self._plan, self._random, self._producer
        self._serial += 1
        copy = self._ledger.begin(f"{self._name}.{self._serial}")
        is_calm = self._load.is_over
        stalls_at = -1
        if random.random() < plan.stall_share and not is_calm:
            stalls_at = random.randint(0, len(records) + 1)
        producer.begin_transaction()
        identity = producer.identity
        try:
            await self._write(copy, records, stalls_at)
            offsets = {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
            copy.offsets = {key.partition: offset for key, offset in offsets.items()}
            await producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
            if stalls_at > len(records):
                await self._rest(plan.stall_seconds)
            if random.random() >= plan.abort_share or is_calm:
                copy.outcome = Outcome.TRIED
                await self._patiently(producer.commit_transaction)
                copy.outcome = Outcome.COMMITTED
                self._ledger.advance(copy.offsets)
                self._note_end(identity, commit=True)
                return
        except TransactionFatalError:
            raise
        except (KafkaError, ClientError) as error:
            self._note(error)
        await self._abort(copy)
        self._note_end(identity, commit=False)

    def _note_end(self, identity: Identity | None, *, commit: bool) -> None:
        """Remember the EndTxn of a transaction. In the newer protocol later transactions have other epochs (KIP-890,
        part 2).
        """
        self._ended = None
        if identity is not None:
            self._ended = EndTxnRequest(
                self._transactional_id, identity.producer_id, identity.producer_epoch, commit
            )

    def _is_told_from(self, ended: EndTxnRequest | None) -> bool:
        """True if the open transaction has another epoch than the transaction that has ended. At lower levels of
        `transaction.version` the two epochs may be equal.
        """
        identity = self._producer.identity
        return (
            ended is not None
            and identity is not None
            and (ended.producer_id, ended.producer_epoch) != (identity.producer_id, identity.producer_epoch)
        )

    async def _echo(self) -> None:
        """Send the previous transaction's EndTxn again while the present transaction is open, as if the network had
        delayed that request.
        """
        core, deadline = self._producer.client.core, self._env.clock.monotonic() + ECHO_SECONDS
        finder = CoordinatorFinder(core, CoordinatorKind.TRANSACTION, self._transactional_id)
        try:
            await self._producer.flush()
            await self._producer.client.run(
                finder.request(self._ended, deadline=deadline, version_min=ECHO_VERSION)
            )
        except (KafkaError, ClientError) as error:
            self._note(error)

    async def _write(self, copy: Copy, records: Sequence[ConsumerRecord], stalls_at: int) -> None:
        random = self._random
        echoes_at = -1
        if self._is_told_from(self._ended) and self._echoes.random() < self._plan.echo_share:
            echoes_at = self._echoes.randrange(len(records))
        for number, record in enumerate(records):
            if number == stalls_at:
                await self._rest(self._plan.stall_seconds)
            filler = random.randbytes(random.choice((0, 10, 200)))
            value = copy_value(copy.name, number, record.partition, record.offset, filler)
            partition = random.randrange(PARTITIONS)
            copy.records.append((partition, value))
            await self._producer.send(SINK, value, partition=partition)
            if number == echoes_at:
                await self._echo()
        if stalls_at == len(records):
            await self._producer.flush()
            await self._rest(self._plan.stall_seconds)

    async def _abort(self, copy: Copy) -> None:
        try:
            await self._patiently(self._producer.abort_transaction)
        except IllegalTransactionCall as error:
            raise _GivenUp(str(error)) from error
        copy.outcome = Outcome.ABORTED
        for key, offset in self._polled.items():
            if key in self._consumer.assignment():
                self._consumer.seek(key, offset)
        await self._rest(REST_SECONDS)

    # Rebalance listener

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Do nothing: the consumer begins at the group's committed offsets."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called when partitions are given up. Forgets at which offsets the last poll of these partitions began."""
        for key in partitions:
            self._polled.pop(key, None)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when the consumer has lost these partitions."""
        self.on_partitions_revoked(partitions)
