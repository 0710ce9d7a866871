"""A node of the simulator that has only log directories and their cleaner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import attrs
import structlog
from structlog.testing import LogCapture

from odradek.data_plane.log.cleaning.log_cleaner import CleanerSettings, LogCleaner
from odradek.data_plane.log.directory.log_dir import LogDir, LogDirContext
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import Companion, TaskGroup
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from odradek.serving.node_env import NodeEnv
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.disk import SimDisk
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.log.support import DIRECTORY_ID, TOPIC_ID, append

COMPACTED = LogConfig(cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=150)
SETTINGS = CleanerSettings(
    enable=True,
    threads=1,
    dedupe_buffer_bytes=1 << 16,
    load_factor=0.9,
    io_buffer_bytes=1 << 16,
    io_bytes_per_second_max=1e12,
    backoff_ms=1000,
)
PATIENCE_SECONDS = 600.0
NODE = "node"

Records = list[tuple[bytes | None, bytes | None]]


@attrs.define
class WatchedCompanion:
    """A companion that reports each call to `on_call` before it is made."""

    companion: Companion
    on_call: Callable[[str], None]
    is_closed: bool = False

    def call(self, method: str, *args: Any) -> Any:
        self.on_call(method)
        return self.companion.call(method, *args)

    def close(self) -> None:
        self.is_closed = True
        self.companion.close()


class CleanerNode:
    """A node with directories `disk-0` and so on, whose cleaner runs when a script starts it.

    A script may set `on_call`. It gets the name of each method that is called on a companion, and may raise instead of
    the call.
    """

    env: NodeEnv
    cleaner: LogCleaner

    def __init__(self, settings: CleanerSettings = SETTINGS, *, disks: int = 1, seed: int = 1) -> None:
        self.settings = settings
        self.world = World(seed, Weather())
        self.log_dirs: list[LogDir] = []
        self.companions: list[WatchedCompanion] = []
        self.on_call: Callable[[str], None] = lambda method: None
        self._disks = disks
        self._captured = LogCapture()

    def play(self, script: Callable[[CleanerNode], Awaitable[None]]) -> None:
        """Run a script in the node."""

        async def node(env: NodeEnv, tasks: TaskGroup) -> None:
            self.env = env
            new_companion = env.new_companion

            def watched(factory: str, *args: Any) -> Companion:
                made = WatchedCompanion(new_companion(factory, *args), lambda method: self.on_call(method))
                self.companions.append(made)
                return made

            vars(env)["new_companion"] = watched
            log = structlog.wrap_logger(None, processors=[self._captured])
            for number in range(self._disks):
                directory = env.open_dir(f"disk-{number}", create=True)
                directory.write_atomic(META_PROPERTIES, MetaProperties("c", 1, DIRECTORY_ID).encode())
                context = LogDirContext(clock=env.clock, workers=env.new_workers(), random=Random(5), log=log)
                self.log_dirs.append(LogDir.open(directory, context, config_for=lambda topic: COMPACTED))
                await self.log_dirs[-1].load()
            self.cleaner = LogCleaner(env, self.log_dirs, tasks, log, lambda: self.settings)
            await script(self)
            self.cleaner.stop()

        async def main() -> None:
            await self.world.start_program(NODE, node).ended.wait()

        self.world.run(main)

    @property
    def disk(self) -> SimDisk:
        return self.world.machine(NODE).disk

    def log(self, topic: str, *, disk: int = 0, config: LogConfig = COMPACTED) -> PartitionLog:
        """Create a log with forty committed batches for eight keys."""
        log = self.log_dirs[disk].create_log(topic, 0, TOPIC_ID, config)
        random = Random(topic)
        for number in range(40):
            key = b"key-%d" % random.randrange(7)
            self.append(log, [(key, b"value %d" % number), (b"other", b"%d" % number)])
        return log

    def append(self, log: PartitionLog, found: Records) -> None:
        """Append one batch, and commit it."""
        now_ms = self.env.clock.wall_ms()
        builder = RecordBatchBuilder()
        for key, value in found:
            builder.append(now_ms, key, value)
        append(log, builder.build(), now_ms=now_ms)
        log.advance_high_watermark(log.log_end_offset)

    def configure(self, **changes: Any) -> None:
        """Change the cleaner's configuration while it runs."""
        self.settings = attrs.evolve(self.settings, **changes)
        self.cleaner.config_changed()

    async def sleep(self, seconds: float) -> None:
        await self.env.clock.sleep_until(self.env.clock.monotonic() + seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait in virtual time until the condition is true."""
        deadline = self.env.clock.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.env.clock.monotonic() < deadline, self._captured.entries
            await self.sleep(0.001)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log events of this name."""
        return [dict(entry) for entry in self._captured.entries if entry["event"] == name]


def is_clean(log: PartitionLog) -> bool:
    return log.cleaning.first_dirty_offset == log.active.base_offset and log.cleaning.token is None
