"""The knowledge of partitions and coordinators about transactions is checked: each wrong value is found."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext

import attrs
import pytest

from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.transactions.coordinator import TransactionShard
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.batches.transaction_markers import build_marker
from sim.checks.derived.transactions import TransactionStates, _Known, still_open
from sim.checks.folds.producer_fold import ProducersFold
from sim.checks.watch import Watch
from sim.checks.watched import Hosted
from sim.history import SafetyViolation
from sim.load.copying.copier import SINK
from sim.scenarios.cluster_scenario import ClusterScenario
from tests.sim.runs.copy_runs import quiet_options

SEED = 5
IDS = (("lives", 1, 5), ("expired", 1, 4), ("elsewhere", 0, 4), ("later", 1, 6))
"""Transactional ids, each with its partition and the leader epoch of its coordinator."""
STORM_SECONDS = 8.0
"""Duration of a run in which both copiers abort at least once."""


class Quiet:
    """A quiet cluster. At its end, `tamper` sets one wrong value after the other and restores each."""

    def __init__(self) -> None:
        options = quiet_options()
        self.scenario = ClusterScenario(
            SEED, options=attrs.evolve(options, storm=attrs.evolve(options.storm, seconds=STORM_SECONDS))
        )
        self.watch = Watch(self.scenario.cluster)
        """A watch of its own, since the watch of the run must not remember the wrong values."""
        self.told = 0

    def run(self) -> None:
        """Run the scenario with `tamper` in place of the storm's end."""
        storm = self.scenario._storm.run

        async def tampered() -> None:
            await storm()
            self.tamper()

        vars(self.scenario._storm)["run"] = tampered
        self.scenario.run()

    @property
    def check(self) -> TransactionStates:
        return self.watch.transactions

    @property
    def hosted(self) -> list[Hosted]:
        return list(self.watch.processes.hosted())

    def sees(self, complaint: str, look: Callable[[list[Hosted]], None] | None = None) -> None:
        """Assert that the check raises this complaint."""
        with pytest.raises(SafetyViolation, match=complaint):
            (look or self.check.look_at_all)(self.hosted)
        self.told += 1

    def tamper(self) -> None:
        """Set one wrong value after the other, all at one moment of the run."""
        self.check.look(self.hosted)
        self.check.look_at_all(self.hosted)
        assert min(self.check.scans, self.check.replays) > 0
        sinks = [each.partition for each in self.hosted if each.partition.log.topic == SINK]
        logs = [each.log for each in sinks if each.is_leader]
        state = next(log.producers.state for log in logs if any(map(_aborted, log.segments)))
        assert state is not None
        self.tamper_with_producers(state)
        segment = next(each for log in logs for each in log.segments if _aborted(each))
        index = segment.aborted.index
        fields = index._fields
        index._fields = array("q", fields[:-4])
        self.sees("aborted transactions: copy-sink-. on node-.*, segment 0 has")
        index._fields = fields
        self.tamper_with_coordinators()
        self.check.look_at_all(self.hosted)

    def tamper_with_producers(self, state: ProducerState) -> None:
        first = state.first_ongoing
        state.first_ongoing = 0
        state.ended.append((1 << 40, 0))  # otherwise no check would look at open transactions
        self.sees("last stable offset: .* says 0, and all is decided below")
        assert "is stable up to " in (still_open(self.watch.processes) or "")
        state.ended.pop()
        state.first_ongoing = first
        ongoing = state.ongoing
        state.ongoing = OrderedDict({**ongoing, 1 << 40: 77_777})
        self.sees("open transactions: .* knows .*77777")
        state.ongoing = ongoing
        producer_id, entry = next(each for each in state.entries.items() if each[1].coordinator_epoch >= 0)
        entry.coordinator_epoch += 1
        state.entries[producer_id] = entry
        self.sees("coordinator epoch: .* its last marker has")
        entry.coordinator_epoch -= 1
        state.entries[producer_id] = entry
        each = next(each for each in self.hosted if each.partition.log.producers.state is state)
        who = (each.member.name, each.key)
        log = each.partition.log
        self.check.stable.see(who, log, log.last_stable_offset + 1, "of the sink")
        self.sees("last stable offset", self.check.look)
        self.check.stable = type(self.check.stable)("last stable offset")

    def tamper_with_coordinators(self) -> None:
        shard: TransactionShard = next(
            shard
            for _, shard in self.check._shards()
            if shard.state is not None and "copier-1" in shard.state.transactions
        )
        self.check.look(self.hosted)
        known = self.check._ids["copier-1"]
        self.check._ids["copier-1"] = attrs.evolve(known, producer_epoch=known.producer_epoch + 1)
        self.sees("transactional id: copier-1 .* has epoch", self.check.look)
        self.check._ids["copier-1"] = attrs.evolve(known, producer_id=known.producer_id + 1)
        self.sees("transactional id: copier-1 .* has producer id", self.check.look)
        self.check._ids["copier-1"] = known
        runtime = shard._runtime
        assert runtime is not None
        state = runtime.state
        other = attrs.evolve(state.transactions["copier-1"], timeout_ms=1)
        runtime._state = attrs.evolve(state, transactions=state.transactions.changed({"copier-1": other}))
        self.sees("coordinator: .* its log tells of")
        runtime._state = state


def _aborted(segment: object) -> int:
    index = getattr(getattr(segment, "aborted", None), "index", None)
    return 0 if index is None else len(index)


def test_one_wrong_thing_about_transactions_is_told() -> None:
    """Each rule of the checking module is broken once by a wrong value, and the check finds each one. The run itself
    passes."""
    quiet = Quiet()
    quiet.run()
    assert quiet.told == 8


@pytest.mark.parametrize("epochs", [(3, 3, 4), (4, 3)])
def test_a_marker_of_an_older_coordinator_is_noticed(epochs: tuple[int, ...]) -> None:
    """A marker whose coordinator epoch is lower than that of the producer's last marker is found."""
    fold = ProducersFold()
    for offset, epoch in enumerate(epochs):
        batch = build_marker(1, 0, epoch, is_commit=True, timestamp_ms=0)
        batch[:8] = offset.to_bytes(8, "big")
        fold.take(parse_header(batch), bytes(batch))
    assert fold.fallen == (None if epochs[-1] == 4 else (1, 1, 3, 4))


@pytest.mark.parametrize(
    ("may_forget", "written", "is_told"), [(False, [5], True), (True, [5], False), (True, [2, 5], True)]
)
def test_a_forgotten_producer_begins_without_a_coordinator_epoch(
    may_forget: bool, written: list[int], is_told: bool
) -> None:
    """A producer that was silent for long may lose its coordinator epoch, but only with all its older batches."""
    fold, known = ProducersFold(), ProducerState()
    marker = build_marker(1, 0, 7, is_commit=True, timestamp_ms=0)
    marker[:8] = (4).to_bytes(8, "big")
    fold.take(parse_header(marker), bytes(marker))
    for sequence, offset in enumerate(written):
        known.update(1, 0, sequence, offset, 0, 0, is_transactional=False)
    with pytest.raises(SafetyViolation, match="knows -1") if is_told else nullcontext():
        TransactionStates._check_producers("a log", known, fold, may_forget=may_forget)


def test_only_ids_that_a_coordinator_has_removed_are_forgotten() -> None:
    """A transactional id that has expired may come back with another producer id. Ids of other partitions, of later
    coordinators and of living producers are still known."""
    quiet = Quiet()
    known = {name: _Known(partition, epoch, 7, 3) for name, partition, epoch in IDS}
    quiet.check._ids = dict(known)
    quiet.check._forget_expired(1, 5, {"lives"})
    assert quiet.check._ids == {name: known[name] for name in ("lives", "elsewhere", "later")}
