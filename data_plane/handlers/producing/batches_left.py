"""The batches of a Produce request that are left at its first wait, and what workers find out about them. PORTED.

Theory of operation
===================

`ProduceHandler` appends partition by partition. It waits where an append raises `OffLoop`, and after
`PARTITIONS_PER_TURN` appends in one turn. Before its first wait it makes `BatchesLeft`, which copies the rest, since
the receive buffer is used again. Only then it begins a generator. `ready` lets a worker decompress the next batch and
some behind it. Then the handler goes on with that batch. Anything may have happened in between: leadership, log, topic, limits and checksum are
checked again. Only what the bytes themselves decide is kept: what they decompress to, and whether their records keep
the rules.

These workers have threads of their own (`ProduceWorkers`), so syncs, reads and loading never wait for them. Most batches are
done by those for `small` ones, with little room each. A batch that turns out larger begins anew among the `large`, and so do the
batches behind it when a request has become unusually much. There is one `large` at a time, with rests between them
(`odradek.serving.long_work`): that bounds memory and time, and large ones hold up large ones only.
"""

from __future__ import annotations

from typing import TypeAlias

from odradek.data_plane.handlers.producing.delayed_produce import DelayedProduce
from odradek.data_plane.handlers.producing.producing_desk import ProducingDesk
from odradek.data_plane.handlers.producing.recompression_on_append import Batch
from odradek.data_plane.log.batch_work import SMALL_BYTES_MAX, HandedOff, LargerThanThought, RequestBudget
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.serving.steps import TURN, Steps, in_turn, in_worker, until
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceRequest, TopicProduceResponse

PARTITIONS_PER_TURN = 256
"""Appends of one request between two turns of the loop: about 4 ms of small batches."""
TURNS_AT_ONCE = 2
"""The partitions that one request appends to in its first turns. Producers write to hundreds of partitions in one
request; the rest is appended in turns of long work.
"""
SLICE_BYTES = 4 << 20
"""A worker that has decompressed so much for one request lets the appends go on."""
ANY_SIZE = 1 << 62
_OF_NO_TOPIC = LogConfig()

Begun: TypeAlias = tuple[
    list[TopicProduceResponse], list[PartitionProduceResponse], DelayedProduce | None, bool
]
"""The answers of whole topics, those of the topic under way, the answer that waits, and whether something was refused."""


class BatchesLeft:
    """The batches from one place of a request on. A place is the number of a topic, and of a partition in it."""

    __slots__ = (
        "_batches",
        "_left",
        "_loop_work",
        "_starts",
        "_turns_at_once",
        "_workers",
        "begun",
        "budget",
    )

    def __init__(
        self,
        desk: ProducingDesk,
        partitions: ServedPartitions,
        request: ProduceRequest,
        by_id: bool,
        first_topic: int = 0,
        first_partition: int = 0,
    ) -> None:
        """Copy the records from this place on, also in the request itself."""
        self.begun: Begun | None = None
        """The answers so far, while the loop of appends waits."""
        self._loop_work = desk.loop_work
        self._workers = desk.produce_workers
        self._turns_at_once = TURNS_AT_ONCE
        self._left: list[tuple[memoryview, LogConfig]] = []
        """Batches, with what holds for their topics."""
        self._batches: dict[int, HandedOff] = {}
        """The work on each batch that workers have begun or done, by its number."""
        self._starts: dict[int, int] = {}
        """The number of each topic's first partition among the remaining ones."""
        size = 0
        for at, topic in enumerate(request.topic_data[first_topic:], first_topic):
            hosted = partitions.by_id.get(topic.topic_id) if by_id else partitions.by_name.get(topic.name)
            config = _OF_NO_TOPIC if hosted is None else hosted.config
            first = first_partition if at == first_topic else 0
            self._starts[at] = len(self._left) - first
            for data in topic.partition_data[first:]:
                records = memoryview(bytearray(data.records or b""))
                if data.records is not None:
                    data.records = records
                size += len(records)
                self._left.append((records, config))
        self.budget = RequestBudget(size, desk.produce_workers.inflated)

    def take_begun(self) -> Begun:
        """Take the answers so far, for the loop to go on with."""
        begun, self.begun = self.begun, None
        return ([], [], None, False) if begun is None else begun

    def work_at(self, topic: int, partition: int) -> HandedOff:
        """Return the work on one batch."""
        return self._batch(self._starts[topic] + partition)

    def _batch(self, index: int) -> HandedOff:
        batch = self._batches.get(index)
        if batch is None:
            batch = self._batches[index] = HandedOff(*self._left[index], self.budget, self._loop_work)
        return batch

    def recompress(self, batches: list[Batch]) -> Steps[None]:
        """Give batches their topics' codec, and note what they are then."""
        workers = self._workers
        for batch in batches:
            handed_off = self.work_at(*batch.place)
            try:
                yield in_worker(workers.small, batch.recompress, handed_off, SMALL_BYTES_MAX)
            except LargerThanThought:
                yield in_turn(workers.large, batch.recompress, handed_off, ANY_SIZE)

    def ready(self, topic: int, partition: int) -> Steps[None]:
        """Let workers prepare this batch for its append, and maybe some of the batches behind it.

        A batch that needs no preparation goes on after other requests have had a turn.
        """
        workers = self._workers
        at = self._starts[topic] + partition
        batch = self._batch(at)
        if batch.wants_check:
            yield (
                in_worker(workers.small, batch.check)
                if batch.is_small
                else in_turn(workers.large, batch.check)
            )
        elif batch.is_compressed and batch.size is None:
            some = [self._batch(each) for each in range(at, min(at + PARTITIONS_PER_TURN, len(self._left)))]
            if self.budget.is_unusual or (yield in_worker(workers.small, _inflate, some, self.budget)):
                yield in_turn(workers.large, batch.inflate, ANY_SIZE)
            batch.note_size()
        elif self._turns_at_once > 0:
            self._turns_at_once -= 1
            yield until(0.0)
        else:
            yield TURN


def _inflate(batches: list[HandedOff], budget: RequestBudget) -> bool:
    """Decompress the first of the batches, and as many of the next ones as fit into the slice.

    Returns True if the first batch is a large one, which was not decompressed.
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


__all__ = ["PARTITIONS_PER_TURN", "SLICE_BYTES", "BatchesLeft", "Begun"]
