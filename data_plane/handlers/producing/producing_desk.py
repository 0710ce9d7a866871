"""The desk of handlers that append clients' batches: the objects that appends need. PORTED."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from odradek.data_plane.handlers.verification import VerifyingDesk
from odradek.data_plane.log.batch_work import LoopWork
from odradek.data_plane.log.log_types import AppendResult
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.produce_workers import ProduceWorkers
from odradek.data_plane.replication.partition import Partition
from odradek.serving.contract import Context
from odradek.wire.errors import KafkaError

OnProduced: TypeAlias = Callable[[Context, int, PartitionLog, AppendResult], None]


class ProducingDesk(VerifyingDesk, Protocol):
    """The desk with the objects that appends need."""

    @property
    def loop_work(self) -> LoopWork:
        """The checks of clients' batches that run on the event loop, and their limit in one turn."""

    @property
    def produce_workers(self) -> ProduceWorkers: ...

    @property
    def on_produced(self) -> OnProduced | None:
        """A function that is called with each batch that a client's request has appended; None if there is
        none.
        """

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        """Flush the partition's log, and call `done` afterwards: with None, or with the error."""
