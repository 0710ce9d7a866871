"""The cleaner of a broker: repeatedly chooses the dirtiest log of each free disk, and cleans it. PORTED.

The setting `log.cleaner.threads` is the number of cleaner tasks. Each task has a companion process with its
own offset map. The process starts with the task's first pass, and ends `LINGER_SECONDS` after the task's last
pass. So an idle broker spends nothing on cleaning. A disk has one pass at a time, unless
`odradek.log.cleaner.threads.per.disk` allows more.

A log that cannot be cleaned is skipped until a restart, and the reason is logged. Reasons are damage, an
unknown format, or a batch with more keys than the map can hold. Some errors may be temporary, for example a
full disk or a companion that died. After a temporary error the log is tried again after
`log.cleaner.backoff.ms`. Each further wait is longer. Other logs are cleaned meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from odradek.data_plane.log.cleaning.log_views import needs_timestamps, read_timestamps, view_of
from odradek.data_plane.log.cleaning.pass_run import NoRoom, PassRun, PassSettings
from odradek.data_plane.log.cleaning.pass_values import SECRET_BYTES, OffsetMapTooSmall
from odradek.data_plane.log.cleaning.plan import LogPlan, dirtiest, plan_log
from odradek.data_plane.log.cleaning.throttle import Throttle
from odradek.data_plane.log.cleaning_pass import CleaningAborted
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaning_state import PassReport
from odradek.env.ports import (
    Companion,
    CompanionFailed,
    CompanionLost,
    DiskError,
    DiskRefused,
    Event,
    FileClosed,
    Log,
    TaskGroup,
)
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.named_states import reached
from odradek.serving.node_env import NodeEnv
from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.errors import KafkaError

FACTORY = "odradek.data_plane.log.cleaning.record_loop:RecordLoop"
_LOAD_FACTORS = 0.01, 0.99
"""The least and the greatest load factor of the offset map. A map with a lower load factor would hold too few
keys. In a full map, the search for an unknown key would never end.
"""
RETRY_SECONDS_MAX = 300.0
"""The longest wait, in seconds, before a log is tried again."""
_DOUBLINGS_MAX = 30
_BACKOFF_SECONDS_MIN = 0.01
"""The shortest backoff in seconds. With `log.cleaner.backoff.ms=0` and no such limit, the search for dirty logs
would occupy the event loop completely.
"""
_UNCLEANABLE = (CorruptBatch, InvalidRecord, KafkaError, OffsetMapTooSmall, CompanionFailed)
"""The errors that make a log uncleanable until a restart. `CompanionFailed` stands for an unexpected error,
which the next pass would probably raise again. Kafka treats unexpected errors in the same way.
"""
LINGER_SECONDS = 60.0
"""The time in seconds for which a companion is kept after a pass. It is kept because the start of a companion
costs as much CPU as cleaning 40 MiB of records.
"""
_THREAD_BYTES_MAX = (1 << 31) - 1
_IO_BYTES_MIN = 64 << 10


@attrs.frozen(kw_only=True)
class CleanerSettings:
    """The settings `log.cleaner.*`. All but `enable` may change while the broker runs."""

    enable: bool = setting("log.cleaner.enable")
    threads: int = setting("log.cleaner.threads")
    dedupe_buffer_bytes: int = setting("log.cleaner.dedupe.buffer.size")
    """The size in bytes of the offset maps of all threads together."""
    load_factor: float = setting("log.cleaner.io.buffer.load.factor")
    io_buffer_bytes: int = setting("log.cleaner.io.buffer.size")
    """The size in bytes of the IO buffers of all threads together."""
    io_bytes_per_second_max: float = setting("log.cleaner.io.max.bytes.per.second")
    backoff_ms: int = setting("log.cleaner.backoff.ms")
    threads_per_disk: int = 1


@attrs.define
class CleanerFigures:
    """Figures of the cleaner since the start, for metrics."""

    passes: int = 0
    passes_failed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds_max: float = 0.0
    """The longest duration, in seconds, among the most recent passes of the threads (one pass of each
    thread).
    """
    recopy_percent: float = 0.0
    """For the last pass, the bytes written as a percentage of the bytes read."""


@attrs.define
class _Thread:
    """One of the cleaner's tasks, with its companion process."""

    number: int
    companion: Companion | None = None
    idle_since: float = 0.0
    """The monotonic time in seconds at which the companion ended its last pass."""
    last_seconds: float = 0.0


class LogCleaner:
    """Cleans all compacted logs of one broker. Call `run` once, and `stop` before the directories are closed."""

    def __init__(
        self,
        env: NodeEnv,
        log_dirs: Sequence[LogDir],
        tasks: TaskGroup,
        log: Log,
        settings: Callable[[], CleanerSettings],
    ) -> None:
        self._env = env
        self._log_dirs = log_dirs
        self._tasks = tasks
        self._log = log
        self._settings_now = settings
        self.settings = settings()
        self._workers = env.new_workers()
        self._threads: list[_Thread] = []
        self._busy: dict[str, list[PartitionLog]] = {log_dir.path: [] for log_dir in log_dirs}
        """For each directory's path, the logs that threads have chosen and not yet finished. A pass appears
        in `log.cleaning` later, because the thread first flushes the log.
        """
        self._wake: Event = env.event()
        self._throttle = Throttle(env.clock, self.settings.io_bytes_per_second_max)
        self._is_stopped = False
        self.figures = CleanerFigures()
        self.max_dirty_ratio = 0.0
        """The highest dirty ratio of any log, when logs were last compared."""
        self.max_compaction_delay_ms = 0

    # -- start and stop

    def run(self) -> None:
        """Start as many cleaner tasks as the settings require."""
        if self.settings.enable:
            # Tasks end in any order, so their numbers may have gaps.
            known = {thread.number for thread in self._threads}
            for number in range(self.settings.threads):
                if number not in known:
                    thread = _Thread(number)
                    self._threads.append(thread)
                    self._tasks.start_soon(self._run_thread, thread)

    def config_changed(self) -> None:
        """Apply the broker's changed configuration at once. A running pass keeps its buffers."""
        self.settings = self._settings_now()
        self._throttle.change_rate(self.settings.io_bytes_per_second_max)
        if self._threads:
            self.run()
        self.look_now()

    def look_now(self) -> None:
        """Search for dirty logs now, without waiting until the backoff ends."""
        self._wake.set()
        self._wake = self._env.event()

    def stop(self) -> None:
        """End all passes, because the directories are about to be closed."""
        self._is_stopped = True
        for log_dir in self._log_dirs:
            for log in log_dir.logs.values():
                log.cleaning.abort("the broker stops")
        for thread in self._threads:
            self._close(thread)
        self.look_now()

    @staticmethod
    def _close(thread: _Thread) -> None:
        companion, thread.companion = thread.companion, None
        if companion is not None:
            companion.close()

    # -- a thread

    async def _run_thread(self, thread: _Thread) -> None:
        try:
            while not self._is_stopped and thread.number < self.settings.threads:
                if await self._clean_one(thread):
                    thread.idle_since = self._env.clock.monotonic()
                else:
                    await self._rest(thread)
        finally:
            self._close(thread)
            self._threads.remove(thread)

    @property
    def _backoff_seconds(self) -> float:
        return max(self.settings.backoff_ms / 1000, _BACKOFF_SECONDS_MIN)

    async def _rest(self, thread: _Thread) -> None:
        """Wait until the next search for dirty logs. If the companion has been idle for long, end it
        meanwhile.
        """
        clock, wake = self._env.clock, self._wake
        look_at = clock.monotonic() + self._backoff_seconds
        while not self._is_stopped and wake is self._wake and clock.monotonic() < look_at:
            idle_until = thread.idle_since + LINGER_SECONDS
            if thread.companion is not None and clock.monotonic() >= idle_until:
                companion, thread.companion = thread.companion, None
                await self._workers.run(companion.close)
                continue
            with clock.timeout_at(look_at if thread.companion is None else min(look_at, idle_until)):
                await wake.wait()

    async def _clean_one(self, thread: _Thread) -> bool:
        """Clean the dirtiest log. Returns False if there is none, or if the thread should wait before the
        next search.
        """
        found = await self._choose()
        if found is None or self._is_stopped:
            return False
        log_dir, log, plan = found
        busy = self._busy[log_dir.path]
        busy.append(log)
        try:
            return await self._clean(thread, log_dir, log, plan)
        finally:
            busy.remove(log)

    # -- the choice of the log

    def _is_free(self, log_dir: LogDir) -> bool:
        return (
            log_dir.offline_reason is None
            and not log_dir.is_stalled
            and log_dir.full_since is None
            and len(self._busy[log_dir.path]) < self.settings.threads_per_disk
        )

    async def _choose(self) -> tuple[LogDir, PartitionLog, LogPlan] | None:
        """Return the directory, the log and the plan of the dirtiest log that may be cleaned now. Its disk
        must have room for another pass at the same time. Returns None if no log may be cleaned.
        """
        await self._learn_ages()
        now_ms = self._env.agreed_clock.earliest_ms()
        candidates: list[tuple[LogDir, PartitionLog]] = []
        plans: list[tuple[LogConfig, LogPlan]] = []
        self.max_dirty_ratio, self.max_compaction_delay_ms = 0.0, 0
        for log_dir in self._log_dirs:
            for log in log_dir.logs.values():
                if not _is_candidate(log):
                    continue
                plan = plan_log(view_of(log), now_ms)
                self.max_dirty_ratio = max(self.max_dirty_ratio, plan.dirty_ratio)
                self.max_compaction_delay_ms = max(self.max_compaction_delay_ms, plan.compaction_delay_ms)
                if (
                    self._is_free(log_dir)
                    and log not in self._busy[log_dir.path]
                    and log.cleaning.retry_at <= self._env.clock.monotonic()
                ):
                    candidates.append((log_dir, log))
                    plans.append((log.config, plan))
        index = dirtiest(plans)
        return None if index is None else (*candidates[index], plans[index][1])

    async def _learn_ages(self) -> None:
        """Read the ages of segments of those logs whose configuration depends on them."""
        for log_dir in self._log_dirs:
            for log in list(log_dir.logs.values()):
                if self._is_free(log_dir) and _is_candidate(log) and needs_timestamps(log.config):
                    try:
                        now_ms = self._env.agreed_clock.earliest_ms()
                        await self._workers.run(read_timestamps, log, now_ms)
                    except (DiskRefused, FileClosed):
                        continue
                    except CorruptBatch as error:
                        self._set_aside(log, error)
                    except DiskError as error:
                        log.home.failed(error)

    # -- one pass

    async def _clean(self, thread: _Thread, log_dir: LogDir, log: PartitionLog, plan: LogPlan) -> bool:
        """Make a whole pass over a log. Returns False if the thread should wait before the next one."""
        where = {"topic": log.topic, "partition": log.partition}
        self._log.info(
            "log.cleaning_began",
            **where,
            first_dirty_offset=plan.first_dirty_offset,
            end_offset=plan.end_offset,
            dirty_ratio=round(plan.dirty_ratio, 3),
        )
        settings = self.settings
        if thread.companion is None:
            thread.companion = self._env.new_companion(FACTORY)
        run = PassRun(
            log,
            plan,
            PassSettings(
                self._env.random.randbytes(SECRET_BYTES),
                min(settings.dedupe_buffer_bytes // settings.threads, _THREAD_BYTES_MAX),
                _usable(settings.load_factor),
                max(settings.io_buffer_bytes // settings.threads, _IO_BYTES_MIN),
            ),
            thread.companion,
            self._workers,
            self._env.clock,
            self._env.agreed_clock,
            self._throttle.wait,
            lambda: log_dir.space.free_bytes,
        )
        try:
            report = await run.run()
        except (CleaningAborted, FileClosed) as error:
            reached("cleaner.pass_aborted")
            self._log.info("log.cleaning_aborted", **where, reason=str(error))
            return True
        except _UNCLEANABLE as error:
            reached("cleaner.log_set_aside")
            self._set_aside(log, error)
            return True
        except (NoRoom, CompanionLost, DiskError, MemoryError) as error:
            self._failed(thread, log, error)
            return True
        if report is None:
            self._log.info("log.cleaning_aborted", **where, reason="the log has nothing left to clean")
            return False
        self._note(thread, log, report)
        return True

    def _note(self, thread: _Thread, log: PartitionLog, report: PassReport) -> None:
        log.cleaning.last_pass = report
        log.cleaning.passes_failed = 0
        figures = self.figures
        figures.passes += 1
        figures.bytes_read += report.bytes_before
        figures.bytes_written += report.bytes_after
        thread.last_seconds = report.seconds
        figures.seconds_max = max(each.last_seconds for each in self._threads)
        figures.recopy_percent = 100.0 * report.bytes_after / max(report.bytes_before, 1)
        self._log.info(
            "log.cleaned",
            topic=log.topic,
            partition=log.partition,
            first_dirty_offset=log.cleaning.first_dirty_offset,
            seconds=round(report.seconds, 3),
            bytes_before=report.bytes_before,
            bytes_after=report.bytes_after,
            records_read=report.records_read,
            records_kept=report.records_kept,
            keyless_records=report.keyless_records,
        )

    def _set_aside(self, log: PartitionLog, error: Exception) -> None:
        self.figures.passes_failed += 1
        log.cleaning.uncleanable_reason = str(error) or type(error).__name__
        self._log.error(
            "log.uncleanable",
            topic=log.topic,
            partition=log.partition,
            reason=log.cleaning.uncleanable_reason,
        )

    def _failed(self, thread: _Thread, log: PartitionLog, error: Exception) -> None:
        where = {"topic": log.topic, "partition": log.partition}
        if isinstance(error, CompanionLost) and self._is_stopped:
            # This is no failure, because `stop` has closed the companion.
            self._log.info("log.cleaning_aborted", **where, reason="the broker stops")
            return
        self.figures.passes_failed += 1
        state = log.cleaning
        wait_seconds = self._backoff_seconds * 2.0 ** min(state.passes_failed, _DOUBLINGS_MAX)
        state.retry_at = self._env.clock.monotonic() + min(wait_seconds, RETRY_SECONDS_MAX)
        state.passes_failed += 1
        if isinstance(error, DiskError):
            log.home.failed(error)
        if isinstance(error, CompanionLost | MemoryError):
            self._close(thread)
        reason = (
            "the log cleaner lacks memory for its map of keys"
            if isinstance(error, MemoryError)
            else str(error)
        )
        self._log.warning("log.cleaning_failed", **where, reason=reason)

    def statistics(self) -> dict[str, Any]:
        """Return figures for the metrics."""
        aside = [log for each in self._log_dirs for log in each.logs.values() if log.is_uncleanable]
        return {
            "threads": len(self._threads),
            "dead_threads": max(0, self.settings.threads - len(self._threads)) if self.settings.enable else 0,
            "uncleanable_partitions": len(aside),
            "uncleanable_bytes": sum(log.size_bytes for log in aside),
            "max_dirty_percent": round(100 * self.max_dirty_ratio, 2),
            "max_compaction_delay_seconds": self.max_compaction_delay_ms / 1000,
            **attrs.asdict(self.figures),
        }


def _usable(load_factor: float) -> float:
    """Limit the load factor to the range that a map supports. Kafka sets no limits, and accepts NaN."""
    low, high = _LOAD_FACTORS
    return min(max(low, load_factor), high)


def _is_candidate(log: PartitionLog) -> bool:
    return (
        log.config.is_compacted
        and not log.offline
        and log.cleaning.token is None
        and not log.cleaning.is_held
        and log.cleaning.uncleanable_reason is None
    )
