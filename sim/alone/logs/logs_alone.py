"""Schedules for one log directory, drawn from a seed: a plain log and a compacted one, on one simulated disk. PURE.

`LogDir`, its logs, their upkeep, recovery and the passes of the cleaner are the product's (`log_host.py`). The schedule
appends as a leader or as a follower does: plain batches, those of idempotent producers, and transactions. It raises the
high watermark, cuts the log, deletes records, lets time pass, and cleans. Processes die, the power is cut in the middle
of any call to the disk, and the disk is full for a while.

`log_model.py` has the batches that should be there. `log_checks.py` compares the log with them: after each step its
offsets, now and then what readers get, and everything after each start. What a log calls durable outlives a loss of
power. What it calls stored as its start is its start in the next life.

A disk may damage a new batch of a log, or hide for one process which topic a log belongs to. Then that process leaves
the log alone, and changes the other log of the directory. A machine may have lost its date, so that its wall clock begins
in 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import attrs

from odradek.data_plane.log.cleaning.offset_map import SLOT_BYTES
from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.log_config import LogConfig
from odradek.env.ports import DiskRefused
from odradek.wire.errors import KafkaError
from sim.alone.logs.log_checks import must
from sim.alone.logs.log_host import LogHost
from sim.alone.logs.log_run import LogRun
from sim.alone.replication_broker import START_MS
from sim.machine.disk_files import PowerCut

__all__ = ["LogsPlan", "run"]

STEPS_DEFAULT = 150
OPERATIONS_MAX = 40
"""The power is cut within this many calls to the disk."""
PLAIN, KEYED = "plain", "keyed"
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "append": (12.0, 20.0),
    "fill": (0.0, 1.0),
    "commit": (4.0, 8.0),
    "end": (2.0, 4.0),
    "repeat": (0.0, 2.0),
    "misplace": (0.0, 1.0),
    "epoch": (0.0, 0.5, 1.0),
    "cut": (0.0, 1.0, 2.0),
    "delete": (0.0, 1.0),
    "flush": (0.0, 2.0),
    "look": (2.0, 4.0),
    "clean": (1.0, 3.0),
    "roll": (0.0, 1.0),
    "full": (0.0, 0.0, 0.5),
    "crash": (0.0, 1.0),
    "power": (0.0, 1.0),
    "stop": (0.0, 1.0),
    "read": (4.0,),
    "times": (2.0,),
}
_TROUBLES: Mapping[str, tuple[float, ...]] = {"hide": (0.0, 0.0, 1.0), "damage": (0.0, 0.0, 1.0)}
LOST_DATE_MS = 40_000
"""The wall clock of a machine that has lost its date, when its monotonic clock is 0."""


@attrs.frozen
class LogsPlan:
    """Parameters of a schedule: the weights of its steps, the topics, and the slots of the cleaner's map of keys."""

    steps: int = STEPS_DEFAULT
    weights: Mapping[str, float] = attrs.Factory(dict)
    plain: LogConfig = attrs.Factory(LogConfig)
    keyed: LogConfig = attrs.Factory(LogConfig)
    map_slots: int = 1000
    cut_probability: float = 0.0
    """The probability that the power is cut during a step."""
    between_probability: float = 0.0
    """The probability that a log changes between two calls of upkeep or of a pass."""
    start_ms: int = START_MS
    """The wall clock when the monotonic clock is 0."""

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> LogsPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        segment_bytes, interval = random.choice((300, 700, 2000)), random.choice((0, 150, 4096))
        plain = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            file_delete_delay_ms=1000,
            retention_ms=random.choice((-1, -1, 20_000)),
            retention_bytes=random.choice((-1, -1, 1500)),
        )
        keyed = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            file_delete_delay_ms=1000,
            cleanup_policy=("compact",),
            delete_retention_ms=random.choice((0, 5_000, 60_000)),
        )
        return cls(
            steps,
            {name: random.choice(choices) for name, choices in _WEIGHTS.items()},
            plain,
            keyed,
            random.choice((5, 1000)),
            random.choice((0.0, 0.0, 0.05, 0.2)),
            random.choice((0.0, 0.05)),
        )

    def troubled(self, random: Random) -> LogsPlan:
        """Draw damage to the disk and a lost date. A generator of their own leaves the other draws of a seed alone."""
        weights = {name: random.choice(choices) for name, choices in _TROUBLES.items()}
        start_ms = random.choice((START_MS, START_MS, LOST_DATE_MS))
        return attrs.evolve(self, weights={**self.weights, **weights}, start_ms=start_ms)


def run(seed: int, plan: LogsPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/logs")
    if plan is None:
        plan = LogsPlan.draw(random).troubled(Random(f"{seed}/logs/troubles"))
    return _Run(plan, random).run()


class _Run:
    """One run of a schedule: the directory, whose process dies and starts again, and its two logs."""

    def __init__(self, plan: LogsPlan, random: Random) -> None:
        self._plan = plan
        self._random = random
        configs = {PLAIN: plan.plain, KEYED: plan.keyed}
        self._host = LogHost(random, configs, SLOT_BYTES * plan.map_slots, self._between, plan.start_ms)
        self._logs = {topic: LogRun(self._host, topic, random) for topic in configs}
        self._is_amid = self._is_full = False
        self._was_stopped = False
        self.deaths = self.passes = 0

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and return counts of its events, each with a name."""
        random, plan = self._random, self._plan
        self._begin()
        kinds = [kind for kind, weight in plan.weights.items() if weight]
        weights = [plan.weights[kind] for kind in kinds]
        for kind in random.choices(kinds, weights, k=plan.steps):
            self._perform(getattr(self, f"_{kind}"))
            for each in self._logs.values():
                each.check()
        self._end_all()
        return {
            "records": sum(each.written for each in self._logs.values()),
            "deaths": self.deaths,
            "passes": self.passes,
        }

    def _log(self) -> LogRun:
        return self._random.choice(list(self._logs.values()))

    def _perform(self, step: Callable[[], None]) -> None:
        """Perform a step. By chance the power is cut in the middle of it."""
        disk = self._host.disk
        if self._random.random() < self._plan.cut_probability:
            disk.crash_at(disk.operation_count + self._random.randint(1, OPERATIONS_MAX))
        try:
            step()
        except DiskRefused:
            # The disk was full, so the step has changed nothing.
            must(self._is_full, "a disk with room has refused a step")
            for each in self._logs.values():
                each.refused()
        except PowerCut:
            self._die(power=True)
        disk.crash_at(0)
        disk.capacity_bytes, self._is_full, self._is_amid = None, False, False

    # --- processes

    def _begin(self) -> None:
        """Start the first process, and make both empty logs durable with their topic ids."""
        self._host.start()
        for each in self._logs.values():
            each.open()
            each.log.flush()
            each.started()
        self._host.log_dir.checkpoints.write_recovery_points()

    def _start(self) -> None:
        """Start a process. By chance the power is cut again while it recovers."""
        host = self._host
        while True:
            disk = host.disk
            if self._random.random() < self._plan.cut_probability:
                disk.crash_at(disk.operation_count + self._random.randint(1, OPERATIONS_MAX))
            try:
                host.start()
                for each in self._logs.values():
                    each.open()
                break
            except PowerCut:
                host.die("random")
                for each in self._logs.values():
                    each.died(power=True)
        host.disk.crash_at(0)
        must(
            (host.log_dir.clean_shutdown_broker_epoch is not None) <= self._was_stopped,
            "a crash is taken for a clean stop",
        )
        self._was_stopped = False
        for each in self._logs.values():
            each.started()

    def _die(self, *, power: bool) -> None:
        self.deaths += 1
        for each in self._logs.values():
            each.died(power=power)
        self._host.die(self._random.choice(("random", "synced")) if power else "all")
        self._start()

    def _crash(self) -> None:
        self._die(power=False)

    def _power(self) -> None:
        self._die(power=True)

    def _stop(self) -> None:
        """Shut down cleanly, and start again."""
        self._host.stop()
        for each in self._logs.values():
            each.stopped()
        self._was_stopped = True
        self._start()

    def _damage(self) -> None:
        """End the process after a sync, and damage a new batch of a log."""
        log = self._log()
        self._host.disk.crash_at(0)
        for _ in range(self._random.randint(1, 3)):
            if self._random.random() < 0.5:
                log.begin_epoch()
            log.append()
        log.log.flush()
        self._host.log_dir.checkpoints.write_recovery_points()
        for each in self._logs.values():
            each.died(power=False)
        self._host.die("all")
        log.damaged(self._host.damage(log.log, self._random))
        self.deaths += 1
        self._start()

    def _hide(self) -> None:
        """Run one process that cannot read which topic a log belongs to. It serves only the other log."""
        hidden, other = self._random.sample(list(self._logs.values()), 2)
        if not any(segment.size for segment in hidden.log.segments):
            return
        host, random = self._host, self._random
        host.disk.crash_at(0)
        host.stop()
        for each in self._logs.values():
            each.stopped()
        restore = host.hide_id(hidden.topic)
        host.start()
        must(bool(host.log_dir.unreadable), f"{hidden.topic} is served, and its topic is unknown")
        other.open()
        other.started()
        for _ in range(random.randint(1, 8)):
            random.choice((other.append, other.commit, other.delete, self._look))()
            other.check()
        other.died(power=False)
        host.die("all")
        restore()
        self._start()

    # --- steps of a log

    def _append(self) -> None:
        self._log().append()

    def _fill(self) -> None:
        """Append several batches, so that segments are finished."""
        log = self._log()
        for _ in range(8):
            log.append()

    def _commit(self) -> None:
        self._log().commit()

    def _end(self) -> None:
        self._log().end_transaction()

    def _repeat(self) -> None:
        self._log().repeat()

    def _misplace(self) -> None:
        self._log().misplace()

    def _epoch(self) -> None:
        self._log().begin_epoch()

    def _cut(self) -> None:
        self._log().cut()

    def _delete(self) -> None:
        self._log().delete()

    def _flush(self) -> None:
        self._log().log.flush()
        if self._random.random() < 0.5:
            self._host.log_dir.checkpoints.write_recovery_points()

    def _roll(self) -> None:
        self._log().log.roll(self._host.clock.wall_ms())

    def _read(self) -> None:
        self._log().read()

    def _times(self) -> None:
        self._logs[PLAIN].look_up()

    # --- upkeep

    def _look(self) -> None:
        """Let up to a minute pass, and run the upkeep that is due."""
        self._upkeep(self._random.choice((0, 1000, 1000, 5000, 20_000, 70_000)))

    def _upkeep(self, milliseconds: int) -> None:
        logs = [each for each in self._logs.values() if each.is_open]
        for each in logs:
            each.upkeep_begins(milliseconds)
        self._host.look(milliseconds)
        for each in logs:
            each.upkeep_ended()

    def _clean(self) -> None:
        """Run a pass of the cleaner."""
        keyed = self._logs[KEYED]
        keyed.log.flush()
        keyed.model.pass_begins(cleanable_end(keyed.log), self._host.clock.now_ms)
        if self._host.clean(keyed.log) is not None:
            self.passes += 1
            keyed.cleaned()

    def _between(self) -> None:
        """Change a log between two calls of upkeep or of a pass, by chance."""
        if self._is_amid or self._random.random() >= self._plan.between_probability:
            return
        self._is_amid = True
        log = self._log()
        if log.is_open:
            try:
                self._random.choice((log.append, log.commit, log.delete, log.cut))()
            except KafkaError:
                must(self._is_full, "a disk with room has refused a change")
                log.refused()
        self._is_amid = False

    def _full(self) -> None:
        """Run upkeep and appends while the disk has hardly any room."""
        disk = self._host.disk
        disk.capacity_bytes = disk.used_bytes + self._random.choice((0, 20, 200))
        self._is_full = True
        for _ in range(self._random.randint(1, 4)):
            self._random.choice((self._append, self._delete, self._look))()

    # --- the end

    def _end_all(self) -> None:
        """End all transactions, commit everything, run upkeep and a pass, and stop. Then check everything."""
        self._is_amid = True
        for each in self._logs.values():
            each.settle()
        for _ in range(3):
            self._upkeep(5000)
        for each in self._logs.values():
            each.check_retained()
        self._clean()
        self._stop()
