"""A simulated machine and the node on it: starts, clean stops, killed processes, power losses, disk errors.
PORTED.

Ways to end the node's process:

* `ask_to_stop`: a clean stop.
* `kill("all")`: the process is killed, and the kernel keeps its page cache.
* `kill("synced")` and `kill("random")`: the machine loses power.
* `cut`: the machine loses power in the middle of a disk operation.
* `fail_the_disk`: the disk reports errors, then the machine loses power. A kernel that has failed to write pages
  may drop them, and no later sync reports that.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import cast

import attrs

from odradek.env.ports import DiskError, Event
from odradek.metadata_quorum.features import THIS_RELEASE, Release
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.node import Node, NodeFailed
from odradek.node.run_node import run_node
from odradek.serving.node_env import NodeEnv
from sim.history import SafetyViolation
from sim.machine.answer_counts import AnswerCounts
from sim.machine.disk import Keep
from sim.machine.world import Running, World

BUG = ".bug"
"""The suffix in the name of each event that a node logs if it has met a bug and continues."""
CUT_SECONDS_MAX = 30.0
"""How many seconds `cut` waits for the disk operation in which the power fails."""

__all__ = ["Member", "TraceLog"]


class TraceLog:
    """A node's log; each line becomes an event of the trace."""

    def __init__(
        self,
        world: World,
        who: str,
        on_offline: Callable[[Mapping[str, object]], None] = lambda fields: None,
        on_bug: Callable[[Exception], None] = lambda error: None,
        on_found: Callable[[int, int, bool], None] = lambda broker_id, broker_epoch, is_proven: None,
    ) -> None:
        self._world = world
        self._who = who
        self._on_offline = on_offline
        self._on_bug = on_bug
        self._on_found = on_found
        self.directory_is_offline = False
        self.is_unregistered = False
        """True once the broker has logged that an operator removed it from the cluster."""
        self.errors = 0
        """How many lines had level error."""

    def _note(self, event: str, /, **fields: object) -> None:
        self._world.trace.record(self._world.now, self._who, "log", event, sorted(fields.items()))
        if event == "directory.offline":
            self.directory_is_offline = True
            self._on_offline(fields)
        elif event == "broker.unregistered":
            self.is_unregistered = True
        elif event in ("broker.found_dead", "broker.found_silent"):
            is_proven = event == "broker.found_dead"
            self._on_found(cast("int", fields["broker"]), cast("int", fields["broker_epoch"]), is_proven)

    def error(self, event: str, /, **fields: object) -> None:
        self.errors += 1
        self._note(event, **fields)

    def exception(self, event: str, /, **fields: object) -> None:
        self.error(event, **fields)
        error = sys.exception()
        if event.endswith(BUG) and isinstance(error, Exception):
            self._on_bug(error)

    debug = info = warning = _note


class Member:
    """A node of a simulated cluster, on its own machine. While `disk_is_bad` is set, its process may fail, provided
    that it logs the reason.
    """

    def __init__(
        self, world: World, name: str, config: NodeConfig, older_config: NodeConfig | None = None
    ) -> None:
        self.world = world
        self.name = name
        self.config = self.newest_config = config
        self.older_config = config if older_config is None else older_config
        """The node's configuration before an operator tuned it."""
        self.release: Release = THIS_RELEASE
        """The release that is installed on the machine."""
        self.speaks: Release = THIS_RELEASE
        """The release of the node's present or last process."""
        self.disk_is_bad = False
        self.log = TraceLog(world, name)
        self.may_be_damaged = False
        """True if the fault model was broken on purpose. Then the node may fail for any reason that it logs."""
        self.failures: list[str] = []
        self.answers = AnswerCounts()
        """Counts of the answers that the node's earlier processes have sent."""
        self._errors = 0
        self.on_found_dead: Callable[[Member, int, int], None] = lambda controller, broker_id, broker_epoch: (
            None
        )
        """Called when the controller on this node has fenced a broker because its process had ended."""
        self.on_found_silent: Callable[[int, int], None] = lambda broker_id, broker_epoch: None
        """Called when the controller on this node has fenced a broker because two voices had not heard it."""
        self.node: Node | None = None
        """The node object of the present or last process, for the checks."""
        self._stop: Event | None = None
        self._started: Event | None = None
        self._serves = False

    @property
    def running(self) -> Running | None:
        """The node's present or last process; None before the first start."""
        return self.world.machine(self.name).running

    def is_up(self) -> bool:
        """True while the node's process lives."""
        running = self.running
        return running is not None and not running.ended.is_set()

    def serves(self) -> bool:
        """True if the node's process lives and serves clients."""
        return self.is_up() and self._serves

    @property
    def is_stopping(self) -> bool:
        """True if the node's process was asked to stop."""
        return self._stop is not None and self._stop.is_set()

    def launch(self) -> Event:
        """Start the process. The returned event is set once it serves clients, or has ended."""
        serving = self._started = self.world.event()
        self._serves = False
        self.node = None
        running = self.world.start(self.name, self._serve)
        running.on_end = serving.set
        return serving

    async def start(self) -> None:
        """Start the process, and wait until it serves clients or has ended."""
        await self.launch().wait()

    async def _serve(self, env: NodeEnv) -> None:
        stop = self._stop = env.event()
        serving = self._started
        assert serving is not None
        self._errors += self.log.errors
        running = self.running
        assert running is not None

        def offline(fields: Mapping[str, object]) -> None:
            if running.env.alive:
                self._must_have_a_reason(fields)

        def bug(error: Exception) -> None:
            if running.env.alive and not self.may_be_damaged:
                self.world.refute(error)

        log = self.log = TraceLog(self.world, self.name, offline, bug, self._found)

        def made(node: Node) -> None:
            self.node = node

        def started(_: object) -> None:
            self._serves = True
            serving.set()

        try:
            self.speaks = self.release
            config = attrs.evolve(self.config, release=self.speaks)
            await run_node(config, env, made=made, started=started, stop=stop, log=log, poison=True)
        except* (NodeFailed, DiskError) as group:
            if not self.disk_is_bad and not self.may_be_damaged:
                raise
            self._fail(group, log)
        except* Exception as group:
            if not self.may_be_damaged:
                raise
            self._fail(group, log)
        finally:
            if self.node is not None:
                for services in self.node.services:
                    self.answers.count_table(services.table)

    def _found(self, broker_id: int, broker_epoch: int, is_proven: bool) -> None:
        if is_proven:
            self.on_found_dead(self, broker_id, broker_epoch)
        else:
            self.on_found_silent(broker_id, broker_epoch)

    def _must_have_a_reason(self, fields: Mapping[str, object]) -> None:
        """Fail the run if a log directory has gone offline without a fault of its disk."""
        if not self.disk_is_bad and not self.may_be_damaged:
            told = ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))
            self.world.refute(SafetyViolation(f"{self.name}: a sound log directory has gone offline: {told}"))

    def _fail(self, group: BaseExceptionGroup[BaseException], log: TraceLog) -> None:
        self.failures.append(str(_first(group)))
        log.error("process.failed", reason=self.failures[-1])

    @property
    def errors(self) -> int:
        """How many errors this node's processes have logged."""
        return self._errors + self.log.errors

    # -- ways to end the process

    def ask_to_stop(self) -> None:
        """Ask the process to stop cleanly. `running.ended` is set when the process has stopped."""
        assert self._stop is not None
        self._stop.set()

    async def kill(self, keep: Keep) -> None:
        """Kill the process (`keep` is `all`), or cut the machine's power. Has an effect only while a process runs."""
        running = self.running
        if running is not None and not running.ended.is_set():
            if running.env.alive:  # Another task may have killed the process at the same moment.
                self.world.crash(self.name, keep)
            await running.ended.wait()

    async def cut(
        self, random: Random, operations_max: int = 300, seconds_max: float = CUT_SECONDS_MAX
    ) -> None:
        """Cut the power in the middle of one of the next disk operations, at most `operations_max` from now."""
        running = self.running
        assert running is not None
        disk = self.world.machine(self.name).disk
        disk.crash_at(disk.operation_count + random.randint(1, operations_max))
        await self.world.wait(running.ended, seconds_max)
        if running.env.alive:
            self.world.crash(self.name, "random")
        await running.ended.wait()

    async def fail_the_disk(self, random: Random) -> None:
        """Let some disk operations fail, and cut the power some seconds later. The node may stop by itself before
        that.
        """
        world, running = self.world, self.running
        assert running is not None
        disk = world.machine(self.name).disk
        self.disk_is_bad = True
        aimed = random.choice(("", "", "sync", "read", "append", "rename"))
        if aimed:  # Fail the next operations of one kind: a failed sync, or reads of a bad sector.
            disk.fail_next(errno.EIO, operation=aimed, times=random.choice((1, 3)))
        else:
            for _ in range(random.choice((1, 1, 3))):
                disk.fail_at(disk.operation_count + random.randint(1, 200), errno.EIO)
        await world.sleep(random.uniform(0.0, 5.0))
        disk.forget_faults()
        world.node_env(self.name)  # The machine is still up, even if its process has failed.
        world.crash(self.name, random.choice(("synced", "random")))
        await running.ended.wait()
        self.disk_is_bad = False


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
