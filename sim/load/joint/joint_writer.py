"""One run of a joint writer's process, with the product's own producer. PORTED."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import ParamSpec, TypeVar

from odradek.client.consumer.consumer_types import ConsumerGroupMetadata, OffsetAndMetadata
from odradek.client.consumer.group_calls import Coordinator, Member
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore
from odradek.client.core.operation import Call
from odradek.client.errors import (
    ClientError,
    IllegalTransactionCall,
    RequestTimedOut,
    TransactionFatalError,
)
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.aio_producer import AsyncProducer
from odradek.env.ports import Env, TaskGroup
from odradek.wire.errors import KafkaError
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.load.joint.joint_ledger import Commit, Joint, JointLedger, Outcome
from sim.load.joint.joint_plan import JointPlan, LifePlan
from sim.load.workload import Workload

CLOSE_SECONDS = 3.0
REST_SECONDS = 0.1
ENDING_TRIES = 5
"""How many times a commit or an abort may time out before the producer is closed."""
EXPLICIT_LEVEL = 1
"""The highest level of `transaction.version` at which clients add partitions and offsets by separate requests."""
REQUEST_MS = 5_000
COMMIT_SECONDS = 10.0
RECORDS = (1, 1, 3)
T = TypeVar("T")
P = ParamSpec("P")

__all__ = ["JointWriter", "SendCounter"]


class _GivenUp(Exception):
    """Raised if the producer can no longer continue, or its calls have timed out too often."""


class SendCounter:
    """Counts the requests of one kind that a client sends, since a request that was sent twice may take effect twice."""

    def __init__(self, core: ClientCore, kind: type[Message]) -> None:
        self._kind = kind
        self.times = 0
        setattr(core, "call", self._counting(core.call))  # noqa: B010 - mypy forbids assignment to a method

    def _counting(self, sound: Callable[P, Call]) -> Callable[P, Call]:
        def call(*given: P.args, **named: P.kwargs) -> Call:
            self.times += isinstance(given[0], self._kind)
            return sound(*given, **named)

        return call


class JointWriter:
    """Writes one transaction after another until it is stopped or fenced."""

    def __init__(
        self, load: Workload, ledger: JointLedger, plan: JointPlan, slot: str, number: int, life: LifePlan
    ) -> None:
        self._load = load
        self._ledger = ledger
        self._plan = plan
        self._slot = slot
        self._name = f"{slot}.{number}"
        self._life = life
        self._random = Random(f"{load.world.seed}/{self._name}")
        self._serial = 0
        self.former: Joint | None = None
        """The last transaction that the slot's previous process has begun."""
        self.last: Joint | None = None
        """The last transaction that this process has begun."""
        self.is_over = False
        """If set to True, the process ends after its present transaction."""
        self.turns_max: int | None = None
        """The number of transactions after which the process ends; None: no limit."""
        self.turns = 0
        """How many transactions were committed or aborted."""

    async def main(self, env: Env, tasks: TaskGroup) -> None:
        """Get a producer id, then write transactions until stopped or fenced."""
        self._env = env
        self._open(env, tasks)
        try:
            await self._begin()
            while not self.is_over and (self.turns_max is None or self.turns < self.turns_max):
                await self._turn()
                await self._rest(self._random.uniform(0.0, self._life.calm_seconds) * self._load.pace)
        except (_GivenUp, TransactionFatalError, IllegalTransactionCall) as error:
            self._note(error)
        except SafetyViolation as error:
            self._load.world.refute(error)
        try:
            await self._producer.close(CLOSE_SECONDS)
        except (KafkaError, ClientError) as error:
            self._note(error)
        self._client.close()

    def _open(self, env: Env, tasks: TaskGroup) -> None:
        """Create the producer, and the client for plain commits."""
        plan, life, load = self._plan, self._life, self._load
        two_phase = plan.is_two_phase
        timeout = {} if two_phase else {"transaction.timeout.ms": str(life.timeout_ms)}
        self._producer = AsyncProducer(
            env,
            tasks,
            {
                "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in load.bootstrap),
                "client.id": plan.client_ids[self._slot],
                "transactional.id": plan.transactional_ids[self._slot],
                "transaction.two.phase.commit.enable": str(two_phase).lower(),
                # A batch must fit into a segment, which may be as small as 700 bytes.
                "batch.size": "300",
                "max.block.ms": "10000",
                "request.timeout.ms": str(REQUEST_MS),
                "delivery.timeout.ms": str(2 * REQUEST_MS),
                **timeout,
            },
        )
        if life.is_explicit:
            self._producer.limit_transaction_version(EXPLICIT_LEVEL)
        self._in_transaction = SendCounter(self._producer.client.core, TxnOffsetCommitRequest)
        config = ClientConfig(
            client_id=plan.client_ids[self._slot], request_timeout=REQUEST_MS / 1000, fail_fast=False
        )
        self._client = AsyncClient(env, tasks, load.bootstrap, config)
        self._plain = SendCounter(self._client.core, OffsetCommitRequest)
        self._coordinator = Coordinator(self._client.core, plan.group)

    def _note(self, error: Exception) -> None:
        self._load.world.trace.record(self._load.world.now, self._name, "joint", error)

    async def _rest(self, seconds: float) -> None:
        clock = self._env.clock
        await clock.sleep_until(clock.monotonic() + seconds)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that times out, up to `ENDING_TRIES` times. Raises `_GivenUp` after that."""
        for _ in range(ENDING_TRIES):
            try:
                return await call()
            except RequestTimedOut as error:
                self._note(error)
        raise _GivenUp(f"{self._name} has lost its patience")

    # -- the start

    async def _begin(self) -> None:
        """Get a producer id, and end the transaction that the previous process has prepared."""
        former = self.former
        if not self._plan.is_two_phase or self._random.random() >= self._life.resume_share:
            if former is not None:
                former.prepared = ""
            await self._patiently(self._producer.init_transactions)
            return
        text = await self._patiently(self._producer.resume)
        self._ledger.resumed(former, text)
        if text is None:
            return
        if former is not None and former.prepared == text and self._random.random() >= self._life.abort_share:
            await self._commit(former)
        else:
            await self._abort(former if former is not None and former.prepared == text else None)

    # -- transactions

    async def _turn(self) -> None:
        self._serial += 1
        joint = self.last = self._ledger.begin(
            f"{self._name}.{self._serial}", is_explicit=self._life.is_explicit
        )
        self._producer.begin_transaction()
        try:
            await self._write(joint)
            if self._plan.commits_offsets:
                for _ in range(self._random.randint(0, self._life.commits)):
                    await self._commit_offsets(joint)
                    await self._commit_plainly()
                    await self._maybe_stall()
            if await self._end(joint):
                self.turns += 1
                await self._commit_plainly()
                return
        except TransactionFatalError:
            raise
        except (KafkaError, ClientError) as error:
            self._note(error)
        await self._abort(joint)
        self.turns += 1

    async def _maybe_stall(self) -> None:
        if self._random.random() < self._life.stall_share and not self._load.is_over:
            await self._rest(self._life.stall_seconds)

    async def _write(self, joint: Joint) -> None:
        """Write the records of one transaction to many partitions."""
        plan, random = self._plan, self._random
        count = max(1, round(plan.partitions * self._life.partitions_share))
        for partition in random.sample(range(plan.partitions), count):
            for _ in range(random.choice(RECORDS)):
                key = b"%s/%d" % (self._slot.encode(), random.randrange(plan.keys))
                value = self._ledger.send(joint, partition, key, random.randbytes(random.choice((0, 10, 90))))
                await self._producer.send(plan.topic, value, key=key, partition=partition)
        if random.random() < 0.3:
            await self._producer.flush()
        await self._maybe_stall()

    async def _end(self, joint: Joint) -> bool:
        """Try to end the transaction. Return False if it must be aborted."""
        random, life = self._random, self._life
        is_calm = self._load.is_over
        if self._plan.is_two_phase:
            text = await self._patiently(self._producer.prepare)
            joint.prepared = text
            if random.random() < life.leave_share and not is_calm:
                raise _GivenUp(f"{joint.name} is left to a successor")
            await self._maybe_stall()
        if random.random() < life.abort_share and not is_calm:
            return False
        await self._commit(joint)
        return True

    async def _commit(self, joint: Joint) -> None:
        joint.outcome = Outcome.TRIED
        await self._patiently(self._producer.commit_transaction)
        self._ledger.committed(joint)

    async def _abort(self, joint: Joint | None) -> None:
        """Abort the open transaction. `joint` is None for an open transaction that the slot's previous process has not
        prepared.
        """
        try:
            if joint is not None and joint.outcome is Outcome.OPEN:
                joint.prepared = ""
            await self._patiently(self._producer.abort_transaction)
        except IllegalTransactionCall as error:
            raise _GivenUp(str(error)) from error
        if joint is not None:
            joint.outcome = Outcome.ABORTED
        await self._rest(REST_SECONDS)

    # -- offsets

    def _some_partitions(self) -> list[int]:
        """Draw a random number of partitions. Two draws often have partitions in common."""
        count = self._plan.partitions
        return sorted(self._random.sample(range(count), self._random.randint(1, count)))

    def _offsets(self, asked: list[Commit]) -> dict[TopicPartition, OffsetAndMetadata]:
        topic = self._plan.topic
        return {TopicPartition(topic, each.partition): OffsetAndMetadata(each.offset) for each in asked}

    async def _commit_offsets(self, joint: Joint) -> None:
        """Commit offsets of the group as part of the transaction."""
        asked = self._ledger.ask(self._some_partitions(), joint)
        before = self._in_transaction.times
        group = ConsumerGroupMetadata(self._plan.group)
        await self._producer.send_offsets_to_transaction(self._offsets(asked), group)
        self._ledger.answer(asked, times=self._in_transaction.times - before)

    async def _commit_plainly(self) -> None:
        """Commit offsets of the same group outside any transaction."""
        if not self._plan.commits_offsets or self._random.random() >= self._life.plain_share:
            return
        asked = self._ledger.ask(self._some_partitions(), None)
        before = self._plain.times
        core = self._client.core
        try:
            await self._client.run(
                self._coordinator.commit(
                    self._offsets(asked), Member(), deadline=core.now + COMMIT_SECONDS, topic_ids={}
                )
            )
        except (KafkaError, ClientError) as error:
            self._note(error)
            return
        self._ledger.answer(asked, times=self._plain.times - before)
