"""Snapshots of a node's metadata log: when a snapshot is due, and how it is written from the committed image.
PORTED.

Theory of operation
-------------------
Every node, leader or not, writes its own snapshots, of committed images only. The publisher reports each
committed image to `Snapshotter.note`, with the number of log bytes since the previous image. A snapshot is
due when the sum of these bytes reaches `metadata.log.max.record.bytes.between.snapshots`. It is also due when
something has changed and the last snapshot is older than `metadata.log.max.snapshot.interval.ms`.

An image never changes, so it can be written while the node keeps working. A worker writes it batch by batch;
other threads may run between two batches. `written` is called when the snapshot's file is durable. Only then
may the log below the snapshot's end be removed.

When the task runs, it writes the newest image. A snapshot must end where a batch ends, since otherwise the
next batch would begin below the snapshot's end. This holds for two reasons. The high watermark advances
by whole batches, and all images up to the high watermark are noted before the task runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from odradek.env.pausing import pause
from odradek.env.ports import DiskRefused, Env, Log, Workers
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.ports import OffsetAndEpoch, SnapshotStore
from odradek.metadata_quorum.replica.checkpoint_files import snapshot_chunks
from odradek.named_states import reached
from odradek.wire.structure import Message

__all__ = ["SnapshotSettings", "Snapshotter", "write_snapshot"]

DISK_FULL_RETRY_SECONDS = 60.0


@attrs.frozen
class SnapshotSettings:
    """The limits after which a snapshot is due. An interval of 0 disables the limit by age."""

    bytes_between_max: int = setting("metadata.log.max.record.bytes.between.snapshots")
    interval_ms_max: int = setting("metadata.log.max.snapshot.interval.ms")


async def write_snapshot(
    image: MetadataImage,
    store: SnapshotStore,
    *,
    control_records: Sequence[Message],
    timestamp_ms: int,
    last_contained_log_timestamp: int,
    workers: Workers,
) -> OffsetAndEpoch:
    """Write a snapshot of `image`. Returns the end offset and epoch of the snapshot. Raises `DiskError`."""
    end = OffsetAndEpoch(image.offset + 1, image.epoch)
    chunks = snapshot_chunks(
        records_of(image),
        control_records=control_records,
        epoch=image.epoch,
        timestamp_ms=timestamp_ms,
        last_contained_log_timestamp=last_contained_log_timestamp,
    )
    draft = await workers.run(store.begin, end)

    def step() -> bool:
        chunk = next(chunks, None)
        if chunk is not None:
            pause()
            draft.append(chunk)
        return chunk is not None

    try:
        while await workers.run(step):
            pass
        await workers.run(draft.finish)
    except Exception:
        await workers.run(draft.discard)
        raise
    return end


class Snapshotter:
    """Writes snapshots when they are due.

    Run `run` as a task, and call `note` for every committed image, in order.
    """

    def __init__(
        self,
        env: Env,
        store: SnapshotStore,
        settings: SnapshotSettings,
        *,
        control_records_below: Callable[[int], Sequence[Message]],
        written: Callable[[OffsetAndEpoch], None],
        logger: Log,
    ) -> None:
        """`control_records_below(offset)` returns the KRaft version and the voters in the log below the
        offset; nothing if the configuration names the voters. `written` is called with the end of each new
        snapshot, so that the quorum can remove the log below it.
        """
        self._store = store
        self._settings = settings
        self._control_records_below = control_records_below
        self._written = written
        self._env = env
        self._clock = env.clock
        self._logger = logger
        self._image: MetadataImage | None = None
        self._last_offset = -1
        self._log_timestamp_ms = 0
        self._bytes = 0
        self._last_at = env.clock.monotonic()
        self._wake = env.event()
        self._snapshots = 0

    def begin_after(self, end_offset: int) -> None:
        """Count the bytes for the next snapshot from `end_offset` on, where the newest snapshot ends.

        Called at the start, and when a leader's snapshot was installed.
        """
        self._last_offset = end_offset - 1
        self._image = None
        self._bytes = 0
        self._last_at = self._clock.monotonic()

    def note(self, image: MetadataImage, size: int, log_timestamp_ms: int) -> None:
        """Called when `image` is committed.

        `size` is the number of log bytes since the previous image, and `log_timestamp_ms` their newest
        timestamp, if known.
        """
        self._image = image
        self._bytes += (
            self._settings.bytes_between_max if self._env.buggify("metadata.early_snapshot") else size
        )
        self._log_timestamp_ms = max(log_timestamp_ms, self._log_timestamp_ms)
        if self._is_due():
            self._wake.set()

    def _is_due(self) -> bool:
        if self._image is None or self._image.offset <= self._last_offset:
            return False
        if self._bytes >= self._settings.bytes_between_max:
            return True
        interval = self._settings.interval_ms_max / 1000
        return interval > 0 and self._clock.monotonic() >= self._last_at + interval

    async def run(self) -> None:
        """Write snapshots when they are due, until cancelled.

        While the disk is full, writing waits. Raises `DiskError`.
        """
        while True:
            # Wait for one more turn of the event loop, so that the other images of the same batch are noted
            # first.
            await self._wake.wait()
            await self._clock.sleep_until(0.0)
            self._wake = self._env.event()
            image = self._image
            if image is None or not self._is_due():
                continue
            await self._write(image)

    async def _write(self, image: MetadataImage) -> None:
        started_at = self._clock.monotonic()
        size, self._bytes = self._bytes, 0
        try:
            end = await write_snapshot(
                image,
                self._store,
                control_records=self._control_records_below(image.offset + 1),
                timestamp_ms=self._clock.wall_ms(),
                last_contained_log_timestamp=self._log_timestamp_ms,
                workers=self._env.workers,
            )
        except DiskRefused as error:
            reached("quorum.no_room_for_snapshot")
            self._logger.warning("metadata.snapshot_not_written", error=str(error))
            self._bytes += size
            await self._clock.sleep_until(self._clock.monotonic() + DISK_FULL_RETRY_SECONDS)
            return
        self._last_at = self._clock.monotonic()
        self._last_offset = max(self._last_offset, image.offset)
        self._snapshots += 1
        self._logger.info(
            "metadata.snapshot",
            end_offset=end.offset,
            epoch=end.epoch,
            log_bytes=size,
            write_ms=round((self._last_at - started_at) * 1000),
        )
        self._written(end)

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: the number of snapshots, the end of the newest snapshot, and the log
        bytes since that snapshot.
        """
        return {
            "snapshots": self._snapshots,
            "bytes_since_snapshot": self._bytes,
            "last_snapshot_offset": self._last_offset + 1,
        }
