"""The rest of a Produce request that takes too long for one turn of the loop: workers decompress, then the loop
appends, turn by turn. PORTED.

Theory of operation
===================

`ProduceHandler` appends partition by partition. It stops where an append raises `OffLoop`, or after
`PARTITIONS_PER_TURN` appends in one turn. It then keeps its progress in a `ProduceRest` and suspends the connection,
so that no later request of it can overtake. `work` lets a worker decompress that batch and some behind it, and the
handler goes on where it stood. Anything may have happened in between: leadership, log, topic, limits and checksum are
checked again. Only results that depend on the bytes alone are kept: their decompressed size, and the check of their
records.

These workers have threads of their own (`ProduceWorkers`), so syncs, reads and loading never wait for them. Most
batches are done by those for `small` ones, with little room each. A batch that turns out larger begins anew among the
`large`, and so do the batches behind it when a request has become unusually large. There is one `large` at a time,
with rests between them (`odradek.serving.long_work`): that bounds memory and time, and large ones delay only each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import TypeAlias, TypeVar

from odradek.data_plane.broker import Broker
from odradek.data_plane.handlers.producing.delayed_produce import DelayedProduce
from odradek.data_plane.handlers.producing.recompression_on_append import Batch
from odradek.data_plane.handlers.producing.transactional_batches import TransactionalBatches
from odradek.data_plane.log.batch_work import SMALL_BYTES_MAX, HandedOff, LargerThanThought, RequestBudget
from odradek.data_plane.log.log_config import LogConfig
from odradek.serving.contract import Result
from odradek.serving.long_work import metered
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceRequest, TopicProduceResponse

PARTITIONS_PER_TURN = 256
"""Appends of one request between two turns of the loop: about 4 ms of small batches."""
TURNS_AT_ONCE = 2
"""Appends per request beyond which the rest goes in turns of long work: producers write to hundreds of partitions
in one request.
"""
SLICE_BYTES = 4 << 20
"""After a worker has decompressed so much for one request, the appends go on."""
ANY_SIZE = 1 << 62
_OF_NO_TOPIC = LogConfig()


class GoOn(Enum):
    """The outcome of a turn that leaves work for another one."""

    GO_ON = "go on"


GO_ON = GoOn.GO_ON
T = TypeVar("T")

Turn: TypeAlias = "Result | GoOn"
"""The outcome of one turn of a request."""


class ProduceRest:
    """The progress of one Produce request: its answers so far, and the batches that are left.

    `ProduceHandler` keeps its variables here between two turns.
    """

    __slots__ = (
        "_batches",
        "_broker",
        "_large",
        "_left",
        "_share",
        "_starts",
        "_turns_at_once",
        "answers",
        "budget",
        "delayed",
        "failed",
        "place",
        "responses",
    )

    def __init__(self, broker: Broker, request: ProduceRequest, by_id: bool, place: tuple[int, int]) -> None:
        """Copy the rest from `place` on (numbers of a topic and of a partition in it).

        The receive buffer is used again meanwhile.
        """
        self.responses: list[TopicProduceResponse] = []
        """Answers of the topics that are done."""
        self.answers: list[PartitionProduceResponse] = []
        """Answers of the next topic's partitions that are done."""
        self.delayed: DelayedProduce | None = None
        """The partitions that were appended to and must be waited for."""
        self.failed = False
        self.place = place
        self._broker = broker
        self._share = broker.long_work.begin()
        self._large = broker.produce_workers.large.begin()
        # The first share has the payer: the same client pays for the large worker.
        self._large.payer = self._share.payer
        self._turns_at_once = TURNS_AT_ONCE
        self._left: list[tuple[memoryview, LogConfig]] = []
        """Batches, with their topics' configurations."""
        self._batches: dict[int, HandedOff] = {}
        """The work on each batch that workers have begun or done, by its number."""
        self._starts: dict[int, int] = {}
        """The number of each topic's first partition among the batches that are left."""
        first_topic, first_partition = place
        size = 0
        for at, topic in enumerate(request.topic_data[first_topic:], first_topic):
            hosted = broker.topics_by_id.get(topic.topic_id) if by_id else broker.topics.get(topic.name)
            config = _OF_NO_TOPIC if hosted is None else hosted.config
            first = first_partition if at == first_topic else 0
            self._starts[at] = len(self._left) - first
            for data in topic.partition_data[first:]:
                records = memoryview(bytearray(data.records or b""))
                if data.records is not None:
                    data.records = records
                size += len(records)
                self._left.append((records, config))
        self.budget = RequestBudget(size, broker.produce_workers.inflated)

    def work_at(self, topic: int, partition: int) -> HandedOff:
        """Find the work on one batch, by the places of its topic and its partition in the request."""
        return self._batch(self._starts[topic] + partition)

    def _batch(self, index: int) -> HandedOff:
        batch = self._batches.get(index)
        if batch is None:
            batch = HandedOff(*self._left[index], self.budget, self._broker.loop_work)
            self._batches[index] = batch
        return batch

    def keep(
        self, responses: list[TopicProduceResponse], answers: list[PartitionProduceResponse], failed: bool
    ) -> None:
        """Keep the progress: the next turn begins behind these."""
        self.responses, self.answers, self.failed = responses, answers, failed
        self.place = (len(responses), len(answers))

    async def verify(self, transaction: TransactionalBatches, steps: Iterator[None]) -> None:
        """Take the `steps` of collecting batches to verify, in several turns, and ask the coordinator."""
        while await self._share.on_loop(lambda: sum(1 for _ in islice(steps, PARTITIONS_PER_TURN))):
            continue
        if transaction.must_ask and not transaction.error:
            await transaction.verify()

    async def recompress(self, batches: list[Batch]) -> None:
        """Give batches their topics' codec, and note the results."""
        for batch in batches:
            handed_off = self.work_at(*batch.place)
            try:
                await self._in_small(batch.recompress, handed_off, SMALL_BYTES_MAX)
            except LargerThanThought:
                await self._large.in_worker(batch.recompress, handed_off, ANY_SIZE)

    async def _in_small(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in a small worker; the client pays the processor time of its thread.

        Raises the function's errors, for whose time the client pays as well.
        """
        broker, payer = self._broker, self._share.payer
        small = broker.produce_workers.small
        if payer is None:
            return await small.run(function, *args)
        took: list[float] = []
        try:
            return await small.run(metered, broker.produce_workers.meter, took, function, *args)
        finally:
            if took:
                payer(took[0], broker.clock.monotonic())

    async def work(self, go_on: Callable[[], Turn]) -> Turn:
        """Let workers do the work of the next append, and maybe of later ones; returns the result of `go_on`
        afterwards.

        If the next append needs no worker, it goes on after other tasks have had a turn.
        """
        broker = self._broker
        at = self._starts[self.place[0]] + self.place[1]
        batch = self._batch(at)
        if batch.wants_check:
            if batch.is_small:
                await self._in_small(batch.check)
            else:
                await self._large.in_worker(batch.check)
        elif batch.is_compressed and batch.size is None:
            some = [self._batch(each) for each in range(at, min(at + PARTITIONS_PER_TURN, len(self._left)))]
            if self.budget.is_unusual or await self._in_small(_inflate, some, self.budget):
                await self._large.in_worker(batch.inflate, ANY_SIZE)
            batch.tell_size()
        elif self._turns_at_once > 0:
            self._turns_at_once -= 1
            await broker.clock.sleep_until(0.0)
        else:
            return await self._share.on_loop(go_on)
        return go_on()


def _inflate(batches: list[HandedOff], budget: RequestBudget) -> bool:
    """Decompress the first of the batches, and those behind it as far as the slice goes.

    Returns whether the first is a large one, which is left to a larger worker.
    """
    before = budget.bytes_inflated
    for batch in batches:
        if batch is not batches[0] and not batch.may_be_appended:
            continue
        try:
            batch.inflate(SMALL_BYTES_MAX)
        except LargerThanThought:
            return batch is batches[0]
        if budget.bytes_inflated - before >= SLICE_BYTES:
            break
    return False


__all__ = ["GO_ON", "PARTITIONS_PER_TURN", "SLICE_BYTES", "GoOn", "ProduceRest", "Turn"]
