"""Snapshots of a node's metadata log: when a snapshot is due, and how it is written. PORTED.

Theory of operation
-------------------
Every node, leader or not, writes its own snapshots, of committed images only. The publisher reports each committed
image, and the log's bytes that led to it, to `Snapshotter` (`note`). A snapshot is due when these reach
`metadata.log.max.record.bytes.between.snapshots`, or when something has changed and the last snapshot is older than
`metadata.log.max.snapshot.interval.ms`.

An image never changes, so it is written while the node goes on. A worker writes it batch by batch; between two
batches other threads may run. `written` is called when the file is durable: only after that, the log below it may
be removed.

The task writes the image that is the newest when it runs. Its offset is the end of a batch: the high watermark
moves by whole batches, and all its images are noted before the task runs. A snapshot that ended within a batch
would be followed by a batch that begins below it.
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
    """The bounds at which a snapshot is due. An interval of 0 disables the bound by age."""

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
    """Write `image`, and return the end of the snapshot. Raises `DiskError`."""
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
        draft.discard()
        raise
    return end


class Snapshotter:
    """Writes due snapshots. Keep `run` running; call `note` for every committed image, in order."""

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
        """`control_records_below(offset)` returns KRaft version and voters from the log below the offset; none if
        voters are static. `written` is called with the end of a new snapshot (the quorum drops the log below it).
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
        """Begin after the state that the newest snapshot covers: at the start, and when a leader's snapshot was
        installed.
        """
        self._last_offset = end_offset - 1
        self._image = None
        self._bytes = 0
        self._last_at = self._clock.monotonic()

    def note(self, image: MetadataImage, size: int, log_timestamp_ms: int) -> None:
        """Note that `image` is committed. `size` bytes of the log led to it; `log_timestamp_ms` is their newest
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
        """Write due snapshots until cancelled. Raises `DiskError` when the disk fails; while it is full, writing
        waits.
        """
        while True:
            # Wait one more turn of the loop, so that the other images of the same batch are noted first.
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
        """Return figures for metrics."""
        return {
            "snapshots": self._snapshots,
            "bytes_since_snapshot": self._bytes,
            "last_snapshot_offset": self._last_offset + 1,
        }
