"""The batches of a Produce request that were not appended before its first wait, and what workers have found
out about them. PORTED.

Theory of operation
===================

`ProduceHandler` appends partition by partition. The handler waits if an append raises `OffLoop`, and also
after `PARTITIONS_PER_TURN` appends in one turn. Before its first wait it makes a `BatchesLeft`, which copies
the remaining batches, since the receive buffer will be reused. From then on the handler runs as a generator.
`ready` lets a worker decompress the next batch and some after it. Then the handler continues with that batch.
Meanwhile anything may have changed, so leadership, log, topic, limits and checksum are checked again. Only
facts about the bytes themselves are kept: their decompressed size, and whether the records are valid.

These workers have their own threads (`ProduceWorkers`), so syncs, reads and loading never wait for them. Most
batches are handled by the `small` workers. Each of these workers has a small memory limit. A batch that
exceeds the limit is started again by the `large` workers. If the batches of one request decompress to
unusually many bytes, the `large` workers also handle its later batches. Only one `large` batch is handled at
a time, with pauses between (`odradek.serving.long_work`). These rules bound memory and time, and large
batches delay only large batches.
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
"""The most appends of one request in one turn of the event loop. For small batches they take about 4 ms."""
TURNS_AT_ONCE = 2
"""After its first turn, a request gets this number of further turns without waiting. For later turns it
competes with other requests, as long work. Producers may write to hundreds of partitions in one request.
"""
SLICE_BYTES = 4 << 20
"""The number of bytes that a worker decompresses for one request before appends continue."""
ANY_SIZE = 1 << 62
_OF_NO_TOPIC = LogConfig()

Begun: TypeAlias = tuple[
    list[TopicProduceResponse], list[PartitionProduceResponse], DelayedProduce | None, bool
]
"""The results so far: the answers of complete topics, the answers of the current topic, the delayed answer,
and True if any batch was refused.
"""


class BatchesLeft:
    """The batches of a request from one place on.

    A place is the index of a topic, and the index of a partition in it.
    """

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
        """Copy the records from this place on, and let the request refer to the copies."""
        self.begun: Begun | None = None
        """The results so far, while the loop of appends waits."""
        self._loop_work = desk.loop_work
        self._workers = desk.produce_workers
        self._turns_at_once = TURNS_AT_ONCE
        self._left: list[tuple[memoryview, LogConfig]] = []
        """The remaining batches, each with the configuration of its topic's log."""
        self._batches: dict[int, HandedOff] = {}
        """The work and the results of each batch that workers have started or finished, by the batch's index in
        `_left`.
        """
        self._starts: dict[int, int] = {}
        """For each topic, a number. The sum of this number and a partition's index is the index of the
        partition's batch in `_left`.
        """
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
        """Return the results so far, and clear them, because the loop of appends continues with them."""
        begun, self.begun = self.begun, None
        return ([], [], None, False) if begun is None else begun

    def work_at(self, topic: int, partition: int) -> HandedOff:
        """Return the workers' results for the batch at this place; empty results if they have not started it."""
        return self._batch(self._starts[topic] + partition)

    def _batch(self, index: int) -> HandedOff:
        batch = self._batches.get(index)
        if batch is None:
            batch = self._batches[index] = HandedOff(*self._left[index], self.budget, self._loop_work)
        return batch

    def recompress(self, batches: list[Batch]) -> Steps[None]:
        """Let workers compress batches with their topics' codecs. The results replace the batches."""
        workers = self._workers
        for batch in batches:
            handed_off = self.work_at(*batch.place)
            try:
                yield in_worker(workers.small, batch.recompress, handed_off, SMALL_BYTES_MAX)
            except LargerThanThought:
                yield in_turn(workers.large, batch.recompress, handed_off, ANY_SIZE)

    def ready(self, topic: int, partition: int) -> Steps[None]:
        """Let workers prepare the batch at this place for its append, and maybe some batches after it. If
        this batch needs no preparation, only let other requests have a turn.
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
    """Decompress the first batch, and as many of the next batches as fit into `SLICE_BYTES`. Runs in a
    worker.

    Returns True if the first batch is large, and so was not decompressed.
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
