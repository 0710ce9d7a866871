"""Simulated transactional producers, which the schedule steps. Each uses the older or the newer transaction protocol.
PORTED.

A producer that gets no answer sends its request again. The first request may still arrive. That is safe in the newer
protocol (KIP-890, part 2), where each transaction has its own epoch. A producer of the older protocol never repeats
EndTxn, since a late EndTxn would end its next transaction (docs/delivery.md).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

import attrs

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.parts.verification import ONGOING, VerificationGuard
from odradek.data_plane.transactions.requests import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    Producer,
    Verified,
    VerifyPartitions,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from sim.alone.by_hand import Pause
from sim.alone.replication_broker import START_MS
from sim.alone.transactions.ledger import Attempt, Ledger, Outcome
from sim.alone.transactions.repeated_inits import RepeatedInits
from sim.alone.transactions.transaction_host import TransactionHost
from sim.alone.transactions.written_partition import TOPIC, WrittenPartition

__all__ = ["Called", "Producers", "Surroundings"]

TIMEOUT_MS = 3_000
NEWER, OLDER = 2, 0
RETRIABLE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
    )
)
TRIES_MAX = 60


@attrs.define(eq=False)
class Called:
    """A request to a coordinator: on its way, at the coordinator, or answered."""

    node_id: int
    request: Any
    answer: Any = None
    is_over: bool = False
    may_come_late: bool = True
    """True if the request may still arrive after its sender has stopped waiting."""

    def complete(self, response: Any) -> None:
        """Called with the coordinator's answer (`Reply`)."""
        if not self.is_over:
            self.answer, self.is_over = response, True


class _Over(Exception):
    """Raised when a producer was fenced, or can no longer continue."""


@attrs.define(eq=False)
class Surroundings:
    """The parts of the schedule that producers use."""

    random: Random
    hosts: Mapping[int, TransactionHost]
    partitions: list[WrittenPartition]
    ledger: Ledger
    now_ms: Callable[[], int]
    coordinator: Callable[[], object]
    """Returns the present coordinator, which is another object after each load of the log; None if there is none."""
    repeats: float = 0.0
    """The probability that a producer sends InitProducerId between two transactions, and the probability that it loses the
    answer.
    """
    inits: RepeatedInits = attrs.Factory(RepeatedInits)
    calls: list[Called] = attrs.Factory(list)
    """Requests to coordinators that have not arrived yet."""
    is_calm: bool = False
    """True at the end of the schedule: producers start no further transaction."""


class Producers:
    """All simulated producers, with two transactional ids. Several producers may use the same id at the same time."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._programs: list[Coroutine[Any, Any, None]] = []
        self._number = 0

    def begin(self) -> None:
        """Start a producer. Another producer with the same transactional id may still be running."""
        self._number += 1
        name = self._around.random.choice(("id-0", "id-1"))
        producer = _Producer(
            self._around,
            name,
            f"{name}.{self._number}",
            NEWER if self._around.random.random() < 0.7 else OLDER,
        )
        self._programs.append(producer.run())

    def go_on(self) -> None:
        """Run one random producer until its next wait."""
        if self._programs:
            self._step(self._around.random.choice(self._programs))

    def go_on_all(self) -> None:
        for program in list(self._programs):
            self._step(program)

    def _step(self, program: Coroutine[Any, Any, None]) -> None:
        try:
            program.send(None)
        except StopIteration:
            self._programs.remove(program)

    def kill_one(self) -> None:
        """Kill a random producer, even in the middle of a transaction."""
        if self._programs:
            program = self._around.random.choice(self._programs)
            self._programs.remove(program)
            program.close()

    @property
    def at_work(self) -> int:
        return len(self._programs)

    def close(self) -> None:
        for program in self._programs:
            program.close()


class _Producer:
    """A simulated producer: it sends InitProducerId, then executes one transaction after another."""

    def __init__(self, around: Surroundings, transactional_id: str, name: str, version: int) -> None:
        self._around = around
        self._random = around.random
        self._id = transactional_id
        self._name = name
        self._version = version
        self._producer_id = -1
        self._epoch = -1
        self._since_ms = around.now_ms()
        """The time when the producer first sent InitProducerId."""
        self._asked_of: object = None
        """The coordinator that received the last request. A deposed one may answer, too."""
        self._given_by: object = None
        """The coordinator when the producer asked for its present epoch; None if it is unknown."""
        self._sequences: dict[int, int] = {}

    async def run(self) -> None:
        try:
            await self._initialize()
            while not self._around.is_calm:
                if self._happens():
                    await self._initialize()
                await self._transaction()
        except _Over:
            return

    # -- the coordinator

    async def _ask(self, request: Any, *, may_come_late: bool = True) -> Any:
        """Send a request to the coordinator and return its answer, or NETWORK_EXCEPTION if none arrives."""
        around = self._around
        if not around.hosts:
            await Pause()
            return ErrorCode.NETWORK_EXCEPTION
        leading = [node_id for node_id, host in around.hosts.items() if host.shard is not None]
        # Most requests go to the leader. Some go to another broker, such as a deposed leader whose successor the
        # producer does not know.
        somebody = self._random.random() < 0.1 or not leading
        node_id = self._random.choice(list(around.hosts) if somebody else leading)
        called = Called(node_id, request, may_come_late=may_come_late)
        around.calls.append(called)
        self._asked_of = around.hosts[node_id].shard
        while not called.is_over:
            await Pause()
        return ErrorCode.NETWORK_EXCEPTION if called.answer is None else called.answer

    async def _asked(self, request: Any, *, may_come_late: bool = True) -> Any:
        """Send a request again until the answer has no retriable error. Raises `_Over` after `TRIES_MAX` attempts."""
        for _ in range(TRIES_MAX):
            answer = await self._ask(request, may_come_late=may_come_late)
            if _code(answer) not in RETRIABLE:
                return answer
            if _code(answer) is ErrorCode.NETWORK_EXCEPTION and not may_come_late:
                return answer
        raise _Over

    def _happens(self) -> bool:
        """Draw an event with the probability `repeats`."""
        repeats = self._around.repeats
        return repeats > 0 and self._random.random() < repeats

    async def _initialize(self) -> None:
        request = InitProducer(self._id, TIMEOUT_MS, self._producer_id, self._epoch)
        before, given_by = self._given_by, self._around.coordinator()
        answer = await self._asked(request)
        code = _code(answer)
        if code is ErrorCode.NONE and self._epoch >= 0 and self._happens():
            # The answer is lost, so the producer asks again.
            answer = await self._asked(request)
            code = _code(answer)
        is_same = before is not None and before is self._around.coordinator() is self._asked_of
        if is_same and code in (ErrorCode.NONE, ErrorCode.PRODUCER_FENCED):
            epoch = None if code else answer.producer_epoch
            self._around.inits.answered(request, epoch, self._since_ms)
        if code is not ErrorCode.NONE:
            raise _Over
        assert isinstance(answer, Producer)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._given_by = given_by
        self._sequences.clear()

    # -- transactions

    async def _transaction(self) -> None:
        attempt = self._around.ledger.begin(self._name)
        partitions = self._random.sample(self._around.partitions, self._random.choice((1, 2)))
        is_whole = True
        for number, partition in enumerate(partitions * self._random.choice((1, 1, 2))):
            if not await self._write(attempt, partition, b"%s/%d" % (attempt.name.encode(), number)):
                is_whole = False
                break
        if not attempt.sent:
            return
        commits = is_whole and self._random.random() < 0.7
        if commits:
            attempt.outcome = Outcome.TRIED
        await self._end(attempt, commits=commits, is_whole=is_whole)

    async def _end(self, attempt: Attempt, *, commits: bool, is_whole: bool) -> None:
        request = EndTransaction(self._id, self._producer_id, self._epoch, commits, self._version)
        given_by = self._around.coordinator()
        answer = await self._asked(request, may_come_late=self._version >= NEWER)
        code = _code(answer)
        if code is ErrorCode.NONE:
            attempt.outcome = Outcome.COMMITTED if commits else Outcome.ABORTED
            if self._version >= NEWER:
                assert isinstance(answer, Producer)
                if answer.producer_id >= 0:
                    self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                    self._given_by = given_by
                    self._sequences.clear()
        elif code is ErrorCode.PRODUCER_FENCED or (code is ErrorCode.NETWORK_EXCEPTION and commits):
            raise _Over
        if code is not ErrorCode.NONE or not is_whole:
            # A request of this transaction may still be in flight, so the next transaction needs another epoch
            # (KIP-360).
            await self._initialize()

    async def _write(self, attempt: Attempt, partition: WrittenPartition, value: bytes) -> bool:
        """Write a value to a partition. Returns False if the transaction must be aborted."""
        pair = frozenset(((TOPIC, partition.index),))
        if self._version < NEWER:
            request = AddPartitions(self._id, self._producer_id, self._epoch, pair, self._version)
            code = _code(await self._asked(request))
            if code is ErrorCode.PRODUCER_FENCED:
                raise _Over
            if code is not ErrorCode.NONE:
                return False
        sequence = self._sequences.get(partition.index, 0)
        self._sequences[partition.index] = sequence + 1
        builder = RecordBatchBuilder(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        builder.append(START_MS, None, value)
        batch = bytes(builder.build())
        attempt.sent.append(value)
        for _ in range(TRIES_MAX):
            # A request without an answer is sent again. The partition may then append the first copy, the second
            # copy, or both.
            copies = self._random.choice((1, 1, 1, 2))
            codes = [await self._produce(partition, batch, sequence) for _ in range(copies)]
            if ErrorCode.NONE in codes:
                attempt.values.append(value)
                return True
            if codes[-1] not in RETRIABLE:
                return False
        return False

    async def _produce(self, partition: WrittenPartition, batch: bytes, sequence: int) -> ErrorCode:
        """Send a batch to the partition's leader, which first verifies the transaction (KIP-890). Return the leader's
        error code.
        """
        await Pause()
        if partition.leader < 0:
            return ErrorCode.NETWORK_EXCEPTION
        adds = self._version >= NEWER
        try:
            guard: VerificationGuard = partition.begin_verification(
                self._id, self._producer_id, self._epoch, sequence, adds, self._around.now_ms()
            )
            if guard is not ONGOING:
                values = (self._id, self._producer_id, self._epoch, frozenset(((TOPIC, partition.index),)))
                asked = AddPartitions(*values, NEWER) if adds else VerifyPartitions(*values)
                answer = await self._ask(asked)
                code = (
                    answer.codes.get((TOPIC, partition.index), answer.code)
                    if isinstance(answer, Verified)
                    else answer
                )
                if code:
                    return ErrorCode(code)
                for _ in range(self._random.choice((0, 0, 3))):
                    await Pause()
            partition.append(batch, Origin.CLIENT, guard)
        except KafkaError as error:
            return error.code
        if self._random.random() < 0.1:
            return ErrorCode.NETWORK_EXCEPTION  # The answer is lost.
        return ErrorCode.NONE


def _code(answer: Any) -> ErrorCode:
    return ErrorCode(answer.code if isinstance(answer, (Producer, Verified)) else answer)


def ask_of(called: Called, wall_ms: int) -> Ask:
    """Convert a request to the form that the coordinator receives."""
    return Ask(called.request, 0, called, wall_ms)
