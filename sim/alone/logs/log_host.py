"""The process of a log directory that is simulated without its broker: its disk, its clock, upkeep, and a cleaner.
PORTED.

`LogDir`, its logs and their upkeep are the product's, as are the passes of the cleaner and their record loop. Calls of
workers are done at once. Between two of them `between` is called, so that the schedule can change the logs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import ParamSpec, TypeVar

from odradek.data_plane.log.cleaning.log_views import view_of
from odradek.data_plane.log.cleaning.pass_run import PassRun, PassSettings
from odradek.data_plane.log.cleaning.plan import plan_log
from odradek.data_plane.log.cleaning.record_loop import RecordLoop
from odradek.data_plane.log.directory.log_dir import LogDir, LogDirContext
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import METADATA_FILE_NAME
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaned_segment import CleaningAborted
from odradek.data_plane.log.parts.cleaning_state import PassReport
from odradek.data_plane.log.segments.file_names import LOG_SUFFIX, file_name
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import FileClosed, Scope
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from odradek.wire.batches.batch_header import iter_batches
from sim.alone.replication_broker import START_MS, TOPIC_ID
from sim.history import SafetyViolation
from sim.machine.disk import Keep, SimDisk

__all__ = ["BROKER_EPOCH", "EXPIRATION_MS", "LogHost"]

T = TypeVar("T")
P = ParamSpec("P")

ROOT = "data"
BROKER_EPOCH = 7
EXPIRATION_MS = 60_000
RETENTION_CHECK_MS = 1000
NEWEST = 3
"""A disk damages one of so many newest batches."""
IO_BYTES = 256
"""The bytes that a cleaning pass reads at once. Records are small, so each pass reads many times."""


class _Unending:
    """`odradek.env.ports.Scope` of a timeout that never ends."""

    expired = False


class _Clock:
    """`odradek.env.ports.Clock` with the schedule's time."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = 10_000
        self._start_ms = start_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self._start_ms + self.now_ms

    async def sleep_until(self, deadline: float) -> None:
        self.now_ms = max(self.now_ms, round(deadline * 1000))

    def timeout_at(self, deadline: float) -> AbstractContextManager[Scope]:
        """Return a timeout that never fires, because a call of a worker takes no time."""
        return nullcontext(_Unending())


class _Workers:
    """`odradek.env.ports.Workers` that do each call at once, and then call `between`."""

    def __init__(self, between: Callable[[], None]) -> None:
        self._between = between

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        result = function(*args, **kwargs)
        self._between()
        return result


class _Companion:
    """The cleaner's companion process, as an object of this process."""

    def __init__(self) -> None:
        self._loop = RecordLoop()

    def call(self, method: str, *args: object) -> object:
        return getattr(self._loop, method)(*args)


class _Notes:
    """A logger that keeps the names of warnings and errors."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, /, **fields: object) -> None:
        """Drop the line."""

    debug = info

    def warning(self, event: str, /, **fields: object) -> None:
        """Keep the event's name."""
        self.events.append(event)

    error = exception = warning


class LogHost:
    """A log directory on its disk, and the process that has it open."""

    def __init__(
        self,
        random: Random,
        configs: dict[str, LogConfig],
        dedupe_bytes: int,
        between: Callable[[], None],
        start_ms: int = START_MS,
    ) -> None:
        """Make the disk with an empty directory. `start_ms` is the wall clock's time when the machine started."""
        self.clock = _Clock(start_ms)
        self.disk = SimDisk(Random(f"{random.random()}"), wall_ms=self.clock.wall_ms)
        self.configs = configs
        self.notes = _Notes()
        self._dedupe_bytes = dedupe_bytes
        self._between = between
        self._workers = _Workers(between)
        directory = self.disk.open_dir(ROOT, create=True)
        directory.write_atomic(META_PROPERTIES, MetaProperties("c", 1, bytes(range(16))).encode())
        directory.sync()

    def start(self) -> None:
        """Start a process on the present contents of the disk, and load all logs."""
        self.notes.events.clear()
        context = LogDirContext(
            clock=self.clock,
            workers=self._workers,
            random=Random(5),
            log=self.notes,
            producer_id_expiration_ms=EXPIRATION_MS,
            producer_id_expiration_check_interval_ms=5000,
            retention_check_interval_ms=RETENTION_CHECK_MS,
            checkpoint_interval_ms=3000,
            flush_cycle_ms=20_000,
            reserve_bytes=0,
        )
        directory = self.disk.open_dir(ROOT)
        self.log_dir = LogDir.open(directory, context, config_for=lambda topic: self.configs[topic])
        self._finish(self.log_dir.load())
        self._check_served()

    def log(self, topic: str) -> PartitionLog:
        """Return a topic's log. Make the log if a power loss has taken its directory."""
        found = self.log_dir.get(topic, 0)
        return found or self.log_dir.create_log(topic, 0, TOPIC_ID, self.configs[topic])

    def look(self, milliseconds: int) -> None:
        """Let time pass, and run the upkeep that is due then."""
        self.clock.now_ms += milliseconds
        self._finish(self.log_dir.background.look(self.clock.now_ms))
        self._check_served()

    def clean(self, log: PartitionLog) -> PassReport | None:
        """Run one pass of the cleaner over a log. Returns None if it was aborted, or found nothing to do."""
        plan = plan_log(view_of(log), self.clock.wall_ms())
        if plan.end_offset <= plan.first_dirty_offset:
            return None
        run = PassRun(
            log,
            plan,
            PassSettings(bytes(range(32)), self._dedupe_bytes, 0.9, IO_BYTES),
            _Companion(),
            self._workers,
            self.clock,
            AgreedClock(self.clock),
            _unthrottled,
            lambda: 1 << 40,
        )
        try:
            return self._finish(run.run())
        except (CleaningAborted, FileClosed):
            return None

    def stop(self) -> None:
        """Shut down cleanly. Everything is synced, so a power loss afterwards changes nothing."""
        self.log_dir.close_clean(BROKER_EPOCH)
        self.disk.crash("synced")

    def die(self, keep: Keep) -> None:
        """End the process. Unless `keep` is "all", the machine loses power."""
        self.disk.crash_at(0)
        self.disk.forget_faults()
        self.disk.capacity_bytes = None
        self.disk.crash(keep)

    # --- a damaged disk

    def hide_id(self, topic: str) -> Callable[[], None]:
        """Overwrite the file with the topic id of a log, while no process runs. Return a function that restores it."""
        directory = f"{ROOT}/{topic}-0"
        before = self.disk.peek(directory)[METADATA_FILE_NAME]
        path = f"{directory}/{METADATA_FILE_NAME}"
        self.disk.rewrite(path, bytes(len(before)))
        return lambda: self.disk.rewrite(path, before)

    def damage(self, log: PartitionLog, random: Random) -> int:
        """Change the last byte of one of a log's newest batches, while no process runs. Return the batch's offset."""
        name = file_name(log.active.base_offset, LOG_SUFFIX)
        batches = list(iter_batches(self.disk.peek(log.directory.path)[name]))
        position, header = random.choice(batches[-NEWEST:])
        self.disk.corrupt(f"{log.directory.path}/{name}", position + header.size - 1)
        return header.base_offset

    def _check_served(self) -> None:
        reason = self.log_dir.offline_reason
        if reason is not None:
            raise SafetyViolation(f"the directory goes offline on a sound disk: {reason}")

    def _finish(self, coroutine: Coroutine[object, None, T]) -> T:
        """Run a coroutine to its end. All of its awaits return at once."""
        try:
            coroutine.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("upkeep waits for a port that answers at once")


async def _unthrottled(size: int, is_over: Callable[[], bool]) -> None:
    """Let the pass read on at once."""
