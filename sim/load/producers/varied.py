"""Workload: producers with all kinds of settings. Each process runs for some seconds and closes or is killed; then
the next process starts. PORTED.

Each process has its own name (`varied-1.3`) and its own `ProducerPlan`. Many are killed within milliseconds of a
send, some together with their machines, so that requests are cut off and answers are lost. The history has all
answers that a producer received, and how often each record was sent.

`sim.history` checks the guarantees. A record with acks=1 may be lost. But as long as the record is at its
acknowledged offset, records that are sent later have higher offsets. This rule is checked for records that were sent
once.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import attrs

from odradek.client.core.client_core import ClientCore
from odradek.client.errors import ClientError
from odradek.client.producer.accumulator import Batch
from odradek.client.producer.partitioner import partition_for_key
from odradek.client.producer.record_metadata import RecordMetadata
from odradek.client.shells.aio_producer import AsyncProducer, SentRecord
from odradek.env.ports import Env, Event, TaskGroup
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import ProduceRequest
from odradek.wire.topic_partition import TopicPartition
from sim.history import Told
from sim.load.attachments import attached_to, value_with
from sim.load.producers.producer_plan import ProducerPlan
from sim.load.workload import Workload

TOPIC = "varied"
PARTITIONS = 3
KEYS = 8
LIFE_SECONDS_MAX = 6.0
DOOM_PROBABILITY = 0.01
"""The probability that a producer is killed right after a send."""
DYING_SECONDS_MAX = 0.05
AWAY_SECONDS_MAX = 1.0
CLOSE_SECONDS = 60.0
CLOSE_SECONDS_SHORT = 0.2
UNDER_WAY_MAX = 200
CERTAINLY_REFUSED = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS)
"""Error codes that brokers return only before they append."""

__all__ = ["PARTITIONS", "TOPIC", "VariedProducer", "certainly_failed"]


def certainly_failed(batch: Batch, error: Exception) -> bool:
    """True if a batch that failed with this error is in no log, now or later.

    The error alone does not decide, since it may be the error of an earlier batch. When a queue starts new sequence
    numbers, it also fails batches that may be in the log.
    """
    if batch.parts is not None or batch.maybe_appended:
        return False
    if batch.attempts == 0:
        return True
    return batch.attempts == 1 and isinstance(error, KafkaError) and error.code in CERTAINLY_REFUSED


@attrs.define(eq=False)
class _UnderWay:
    """A record that was passed to a producer. `sent` is None until the client has accepted it."""

    key: TopicPartition
    value: bytes
    began: float
    sent: SentRecord | None = None


class VariedProducer:
    """One machine, on which one producer process after another runs until the workload ends."""

    def __init__(self, load: Workload, name: str) -> None:
        self._load = load
        self._name = name
        self._random = Random(f"{load.world.seed}/{name}")
        self.lives = 0
        self.deaths = 0

    async def run(self) -> None:
        """Run one producer process after another until the workload ends."""
        load, random = self._load, self._random
        world = load.world
        while not load.is_over:
            self.lives += 1
            life = _Life(load, f"{self._name}.{self.lives}", ProducerPlan.draw(random))
            running = world.start_program(self._name, life.main)
            await load.wait_for_life(life.doomed, random.uniform(0.0, LIFE_SECONDS_MAX))
            if life.doomed.is_set():
                await world.sleep(random.uniform(0.0, DYING_SECONDS_MAX))
            elif random.random() < 0.7:
                life.is_over = True
                await world.wait(running.ended, CLOSE_SECONDS)
            if not running.ended.is_set():
                self.deaths += 1
                world.crash(self._name, random.choice(("all", "all", "random")))
                await running.ended.wait()
            life.look_back()
            await world.sleep(random.uniform(0.0, AWAY_SECONDS_MAX))


class _Life:
    """One process with one producer."""

    def __init__(self, load: Workload, name: str, plan: ProducerPlan) -> None:
        self._load = load
        self._name = name
        self._plan = plan
        self._random = Random(f"{load.world.seed}/{name}")
        self._serial = 0
        self._under_way: list[_UnderWay] = []
        self.doomed: Event = load.world.event()
        """Set when the process is about to be killed."""
        self.is_over = False
        """If set to True, the producer closes and the process ends."""

    async def main(self, env: Env, tasks: TaskGroup) -> None:
        """Send records until stopped, then close the producer, often without waiting for the last answers."""
        load, plan, random = self._load, self._plan, self._random
        servers = ",".join(f"{host}:{port}" for host, port in load.bootstrap)
        own = {"bootstrap.servers": servers, "client.id": self._name}
        producer = AsyncProducer(env, tasks, {**own, **plan.settings})
        if plan.broker_timeout_ms is not None:
            _let_brokers_wait(producer.client.core, plan.broker_timeout_ms)
        while not (self.is_over or load.is_over):
            for _ in range(plan.burst):
                await self._send(env, producer)
                if random.random() < DOOM_PROBABILITY:
                    self.doomed.set()
            self.look_back()
            patience = plan.rest_seconds if len(self._under_way) < UNDER_WAY_MAX else 1.0
            seconds = random.uniform(0.0, patience) * load.pace
            await env.clock.sleep_until(env.clock.monotonic() + seconds)
        await producer.close(CLOSE_SECONDS_SHORT if random.random() < 0.3 else CLOSE_SECONDS)

    async def _send(self, env: Env, producer: AsyncProducer) -> None:
        load, plan, random = self._load, self._plan, self._random
        key = random.randrange(KEYS) if random.random() < plan.keyed else None
        filler = random.randbytes(random.choice(plan.value_bytes))
        value = value_with(self._name, self._serial, key, random.randint(0, plan.headers_max), filler)
        self._serial += 1
        name, headers = attached_to(value)
        index = random.randrange(PARTITIONS) if name is None else partition_for_key(name, PARTITIONS)
        record = _UnderWay(TopicPartition(TOPIC, index), value, load.world.now)
        load.history.send(record.key, value, self._name, load.world.now, idempotent=plan.idempotent)
        if not plan.idempotent and plan.repeats:
            load.history.attempted(record.key, value, inf)
        self._under_way.append(record)
        given = index if name is None else None
        try:
            record.sent = await producer.send(TOPIC, value, name, headers, partition=given)
        except (KafkaError, ClientError) as error:
            # The client has not accepted the record, so the record is in none of its batches.
            self._under_way.remove(record)
            load.history.refuse(record.key, value, repr(error), load.world.now)

    def look_back(self) -> None:
        """Pass the outcomes that are known by now to the history."""
        waiting: list[_UnderWay] = []
        for record in self._under_way:
            if record.sent is None or not record.sent.done():
                waiting.append(record)
            else:
                self._settle(record, record.sent)
        self._under_way = waiting

    def _settle(self, record: _UnderWay, sent: SentRecord) -> None:
        history, now = self._load.history, self._load.world.now
        batch, index = sent._batch, sent._index
        if not self._plan.idempotent:
            history.attempted(record.key, record.value, _attempts(batch))
        try:
            where = RecordMetadata.of(batch, index, 0)
        except (KafkaError, ClientError) as error:
            if certainly_failed(batch, error):
                history.refuse(record.key, record.value, repr(error), now)
            else:
                history.failed_sends += 1
            return
        assert (where.topic, where.partition) == record.key, f"{record.key} was asked for, not {where}"
        told = Told(record.key, where.offset, record.value, record.began)
        if self._plan.acks == "all" and where.offset >= 0:
            history.acknowledge(told, now)
        elif where.offset >= 0 and batch.attempts == 1:
            history.witness(told, now)


def _attempts(batch: Batch) -> float:
    """Return how often the records of this batch were sent. Return infinity for a split batch, since its records may
    have been in several batches.
    """
    return inf if batch.parts is not None else batch.attempts


def _let_brokers_wait(core: ClientCore, timeout_ms: int) -> None:
    """Set `timeout_ms` of all Produce requests: how long brokers wait for followers, independent of the client's
    timeouts.
    """
    sound = core.call

    def call(request: Any, **named: Any) -> Any:
        if isinstance(request, ProduceRequest):
            request.timeout_ms = timeout_ms
        return sound(request, **named)

    setattr(core, "call", call)  # noqa: B010 - mypy forbids assignment to a method
