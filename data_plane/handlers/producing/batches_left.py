"""The batches of a Produce request that are left at its first wait, and what workers find out about them. PORTED.

Theory of operation
===================

`ProduceHandler` appends partition by partition. It waits where an append raises `OffLoop`, and after
`PARTITIONS_PER_TURN` appends in one turn. Before its first wait it makes `BatchesLeft`, which copies the rest, since
the receive buffer is used again. Only then it begins a generator. `ready` lets a worker decompress the next batch and
some behind it. Then the handler goes on with that batch. Anything may have happened in between: leadership, log, topic, limits and checksum are
checked again. Only what the bytes themselves decide is kept: what they decompress to, and whether their records keep
the rules.

These workers have threads of their own (`ProduceWorkers`), so syncs, reads and loading never wait for them. Most
batches are done by those for `small` ones, with little room each. A batch that turns out larger begins anew in the
`large` workers. So do the batches behind it, when a request has decompressed to unusually many bytes. One `large`
batch is done at a time, with pauses between (`odradek.serving.long_work`). That bounds memory and time, and large
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
"""Appends of one request between two turns of the loop: about 4 ms of small batches."""
TURNS_AT_ONCE = 2
"""The partitions that one request appends to in its first turns. Producers write to hundreds of partitions in one
request; the rest is appended in turns of long work.
"""
SLICE_BYTES = 4 << 20
"""The bytes that a worker decompresses for one request before appends go on."""
ANY_SIZE = 1 << 62
_OF_NO_TOPIC = LogConfig()

Begun: TypeAlias = tuple[
    list[TopicProduceResponse], list[PartitionProduceResponse], DelayedProduce | None, bool
]
"""The answers of complete topics, the answers of the current topic, the delayed answer, and whether any batch was
refused.
"""


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
        """The batches, each with the configuration of its topic's log."""
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
        """Return the answers so far, and forget them: the loop of appends continues with them."""
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
        """Give batches their topics' codec, and note the new batches."""
        workers = self._workers
        for batch in batches:
            handed_off = self.work_at(*batch.place)
            try:
                yield in_worker(workers.small, batch.recompress, handed_off, SMALL_BYTES_MAX)
            except LargerThanThought:
                yield in_turn(workers.large, batch.recompress, handed_off, ANY_SIZE)

    def ready(self, topic: int, partition: int) -> Steps[None]:
        """Let workers prepare this batch for its append, and maybe some of the batches behind it.

        For a batch that needs no preparation, only let other requests have a turn.
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
