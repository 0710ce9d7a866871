"""Invariants that hold at every moment: the ledgers alone, and the watch over a cluster with one wrong value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import pytest

from odradek.metadata_quorum.raft.roles import Leader
from sim.checks.invariants import (
    CommittedBatches,
    EqualAtOffsets,
    NeverFalls,
    OneForEach,
    StoredHeader,
    check_bound,
    check_isr_holds,
)
from sim.checks.watch import Watch
from sim.history import SafetyViolation
from sim.machine.cluster_members import SETTINGS, Shape
from sim.machine.disk_files import SimFile
from sim.machine.weather import Weather
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm.storm_plan import StormPlan

KEY = (b"id", 0)


def test_a_term_has_one_holder() -> None:
    """Two nodes that claim the same leader epoch are found."""
    leaders = OneForEach("one leader per epoch")
    leaders.see((KEY, 1), "node-1", "epoch 1")
    leaders.see((KEY, 1), "node-1", "epoch 1")
    leaders.see((KEY, 2), "node-2", "epoch 2")
    with pytest.raises(SafetyViolation, match="epoch 1 belongs to node-1 and to node-2"):
        leaders.see((KEY, 1), "node-2", "epoch 1")


def test_figures_fall_only_with_a_new_bearer() -> None:
    """A high watermark that falls within one process is found. In a new process it may be lower."""
    marks = NeverFalls("high watermark")
    one, other = object(), object()
    marks.see("node-1", one, 5, "t-0")
    marks.see("node-1", one, 5, "t-0")
    marks.see("node-1", other, 3, "t-0")
    with pytest.raises(SafetyViolation, match="t-0 fell from 3 to 2"):
        marks.see("node-1", other, 2, "t-0")


def test_states_of_one_offset_are_one_state() -> None:
    """Two nodes with different images of the same offset are found."""
    images = EqualAtOffsets("metadata images")
    images.see("node-1", 7, {"a": 1})
    images.see("node-2", 7, {"a": 1})
    images.see("node-2", 8, {"a": 2})
    assert images.offsets_seen == 2
    with pytest.raises(SafetyViolation, match="node-1 and node-3 differ at offset 7"):
        images.see("node-3", 7, {"a": 2})


def test_committed_batches_are_the_same_for_ever() -> None:
    """Two replicas with different batches below the high watermark are found."""
    committed = CommittedBatches()
    batch = StoredHeader(0, 5, 1, 77)
    committed.see(KEY, "t-0", "node-1", [batch, StoredHeader(5, 6, 1, 1)])
    committed.see(KEY, "t-0", "node-2", [batch])
    assert committed.batches_seen == 2
    for other in (attrs.evolve(batch, crc=78), attrs.evolve(batch, epoch=2)):
        with pytest.raises(
            SafetyViolation, match="node-1 and node-3 have different committed batches at offset 0"
        ):
            committed.see(KEY, "t-0", "node-3", [other])


def test_a_high_watermark_beyond_a_log_in_sync_is_told() -> None:
    """A high watermark above the log end of an in-sync replica is found."""
    check_isr_holds("t-0", "node-1", 5, [("node-2", 5), ("node-3", 9)])
    with pytest.raises(SafetyViolation, match="node-3, which is in sync, ends at 4"):
        check_isr_holds("t-0", "node-1", 5, [("node-2", 5), ("node-3", 4)])


def test_a_bound_is_a_bound() -> None:
    """A queue or cache above its stated bound is found."""
    check_bound("node-1", "sessions", 10, 10)
    with pytest.raises(SafetyViolation, match="sessions: 11, but at most 10"):
        check_bound("node-1", "sessions", 11, 10)


class Tampering:
    """A quiet cluster. At its end, `tamper` sets one wrong value after the other and restores each."""

    def __init__(self) -> None:
        plan = StormPlan(3.0, ())
        self.scenario = ClusterScenario(1, shape=Shape(settings=SETTINGS), plan=plan, weather=Weather())
        self.found: list[str] = []

    def run(self) -> None:
        world = self.scenario.world
        storm = self.scenario._storm.run

        async def tampered() -> None:
            await storm()
            self.tamper()

        vars(self.scenario._storm)["run"] = tampered
        self.scenario.run()
        assert world.now > 0

    def look(self) -> None:
        Watch(self.scenario.cluster).look()

    @contextmanager
    def sees(self, match: str) -> Iterator[None]:
        yield
        with pytest.raises(SafetyViolation, match=match):
            self.look()
        self.found.append(match)

    def put(
        self, bearer: Any, name: str, value: object, match: str, look: Callable[[], None] | None = None
    ) -> None:
        """Set an attribute, assert that the check complains, and restore the attribute."""
        before = getattr(bearer, name)
        setattr(bearer, name, value)
        try:
            with pytest.raises(SafetyViolation, match=match):
                (look or self.look)()
        finally:
            setattr(bearer, name, before)
        self.found.append(match)

    def tamper(self) -> None:
        """Set one wrong value after the other, all at one moment of the run."""
        self.look()
        brokers = [member.node.broker for member in self.scenario.cluster.brokers if member.node is not None]
        replicas = [broker.topics["replicated"].partitions[0] for broker in brokers if broker is not None]
        (leader,) = (each for each in replicas if each.is_leader)
        follower = next(each for each in replicas if not each.is_leader)
        assert leader.log.high_watermark == leader.log.log_end_offset > 0
        self.put(follower, "is_leader", True, "one leader per epoch")
        self.put(follower.log, "log_end_offset", leader.log.high_watermark - 1, "which is in sync")
        watch = Watch(self.scenario.cluster)
        watch.look()
        # The wrong value wakes no task, so this check must include replicas that did not move.
        look_again = partial(watch.look, also_unmoved=True)
        self.put(leader.log, "high_watermark", leader.log.high_watermark - 1, "fell from", look_again)
        # Nobody relies on a follower's high watermark before its leader has confirmed it.
        mark, follower.knows_high_watermark = follower.log.high_watermark, False
        follower.log.high_watermark -= 1
        look_again()
        follower.log.high_watermark, follower.knows_high_watermark = mark, True
        blocks = [broker.producer_ids for broker in brokers if broker is not None]
        block = next(each for each in blocks if each.end_id)
        other = next(each for each in blocks if each is not block)
        self.put(other, "end_id", block.end_id, "one broker per block of producer ids")
        self.put(block, "next_id", block.next_id - 1, "the next one of .* fell", look_again)
        self.tamper_with_bytes(follower.log.segments[0].file)
        self.tamper_with_metadata()

    def tamper_with_bytes(self, file: object) -> None:
        assert isinstance(file, SimFile)
        file.content[17] ^= 1  # a byte in the checksum of the first batch
        with pytest.raises(SafetyViolation, match="different committed batches at offset 0"):
            self.look()
        file.content[17] ^= 1
        self.found.append("bytes")

    def tamper_with_metadata(self) -> None:
        nodes = [member.node for member in self.scenario.cluster.members]
        services = [node.metadata for node in nodes if node is not None and node.metadata is not None]
        image = services[0].committed_image
        other = attrs.evolve(image, next_producer_id=image.next_producer_id + 1)
        self.put(
            services[0]._publisher,
            "image",
            other,
            "metadata image.* (differ at offset|another one at offset)",
        )
        cores = [service.quorum.core for service in services]
        (leader,) = (core for core in cores if isinstance(core.role, Leader))
        second = next(core for core in cores if core is not leader)
        self.put(second, "role", leader.role, "one quorum leader per epoch")
        buffers = next(node for node in nodes if node is not None).services[0].buffers
        self.put(buffers, "bytes_used", buffers.bytes_max + 1, "half-received frames")


def test_the_eyes_see_what_is_wrong_with_a_living_cluster() -> None:
    """Each rule is broken once by a wrong value in a living cluster, and the check finds each one."""
    tampering = Tampering()
    tampering.run()
    assert len(tampering.found) == 9
    watch = tampering.scenario.watch
    assert watch.looks > 50
    assert watch.committed.batches_seen > 50
    assert watch.images.offsets_seen > 10


def test_a_watch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has the same digest with and without the watch."""

    def digest() -> str:
        scenario = ClusterScenario(
            2, shape=Shape(settings=SETTINGS), plan=StormPlan(2.0, ()), weather=Weather()
        )
        scenario.run()
        return scenario.world.digest()

    watched = digest()
    monkeypatch.setattr(Watch, "begin", lambda self: None)
    assert digest() == watched
