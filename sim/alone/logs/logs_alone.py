"""Schedules for one log directory, drawn from a seed: a plain log and a compacted one, on one simulated disk. PURE.

`LogDir`, its logs, their upkeep, recovery and the passes of the cleaner are the product's (`log_host.py`). The schedule
appends as a leader or as a follower does: plain batches, those of idempotent producers, and transactions. It raises the
high watermark, cuts the log, deletes records, lets time pass, and cleans. Processes die, the power is cut in the middle
of any call to the disk, and the disk is full for a while.

`log_model.py` has the batches that should be there. `log_checks.py` compares the log with them: after each step its
offsets, now and then what readers get, and everything after each start. What a log calls durable outlives a loss of
power. What it calls stored as its start is its start in the next life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import attrs

from odradek.data_plane.log.cleaning.offset_map import SLOT_BYTES
from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.log_config import LogConfig
from odradek.env.ports import DiskRefused
from sim.alone.logs.log_checks import must
from sim.alone.logs.log_host import LogHost
from sim.alone.logs.log_run import LogRun
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


def run(seed: int, plan: LogsPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/logs")
    return _Run(LogsPlan.draw(random) if plan is None else plan, random).run()


class _Run:
    """One run of a schedule: the directory, whose process dies and starts again, and its two logs."""

    def __init__(self, plan: LogsPlan, random: Random) -> None:
        self._plan = plan
        self._random = random
        configs = {PLAIN: plan.plain, KEYED: plan.keyed}
        self._host = LogHost(random, configs, SLOT_BYTES * plan.map_slots, self._between)
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
        for each in self._logs.values():
            each.upkeep_begins(milliseconds)
        self._host.look(milliseconds)
        for each in self._logs.values():
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
            self._random.choice((log.append, log.commit, log.delete, log.cut))()
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
