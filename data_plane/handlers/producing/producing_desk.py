"""The desk of a leader to whose partitions clients write. PORTED."""

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
        """The checks of clients' batches that run on the event loop, with their limit per turn."""

    @property
    def produce_workers(self) -> ProduceWorkers: ...

    @property
    def on_produced(self) -> OnProduced | None:
        """A callback within the process: called with each batch that a client's request has appended."""

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        """Call `done` after a flush of the log that begins from now on."""
