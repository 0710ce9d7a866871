"""Unclean recovery: a report that its log denies is noticed, and so is a winner that was not the best."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.metadata_quorum.features import REPLICA_LOG_INFO
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.batches.batch_header import HEADER
from odradek.wire.messages import metadata_records as wire
from odradek.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    PartitionLogInfo,
    TopicPartitionLogInfo,
)
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.heard_heartbeats import HeardHeartbeats
from sim.checks.answers.log_reports import LogReports
from sim.checks.derived.rehearsed_elections import rehearse_election
from sim.checks.folds.metadata_fold import MetadataFold
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.network import SimConn
from tests.mutants.patching import patched

TOPIC = bytes([1]) * 16
DIRS = {number: bytes([10 + number]) * 16 for number in (1, 2, 3)}
LEADER_EPOCH = 7


def registrations(high: int) -> list[Message]:
    """Register a controller and three active brokers, whose epochs are their ids."""
    brokers = [
        wire.RegisterBrokerRecord(
            broker_id=number,
            broker_epoch=number,
            incarnation_id=directory,
            log_dirs=[directory],
            features=[wire.BrokerFeature(REPLICA_LOG_INFO, 0, high)],
            fenced=False,
        )
        for number, directory in DIRS.items()
    ]
    controller = wire.RegisterControllerRecord(
        controller_id=9, incarnation_id=TOPIC, features=[wire.ControllerFeature(REPLICA_LOG_INFO, 0, high)]
    )
    return [*brokers, controller]


class Stage:
    """A partition without candidates on three brokers, and a controller that leads since 0 s."""

    def __init__(self, *, high: int = 1, isr: tuple[int, ...] = ()) -> None:
        self.image = SimpleNamespace(leader=-1)
        self.log = SimpleNamespace(
            offline=False,
            is_closed=False,
            topic="one",
            partition=0,
            directory=SimpleNamespace(path="one-0"),
            log_start_offset=0,
        )
        partition = SimpleNamespace(log=self.log, image=self.image, leader_epoch=LEADER_EPOCH)
        node = SimpleNamespace(
            broker=SimpleNamespace(hosted=SimpleNamespace(partition=lambda topic, index: partition))
        )
        world = SimpleNamespace(now=1.0, seed=1, machine=lambda name: SimpleNamespace(disk=None))
        member = SimpleNamespace(name="node-1")
        processes = SimpleNamespace(world=world, at=lambda conn: None if conn is None else (member, node))
        reign = SimpleNamespace(member=SimpleNamespace(name="node-9"), since=0.0)
        heartbeats = SimpleNamespace(reign=lambda epoch, broker_id: reign)
        self.check = LogReports(cast("Processes", processes), cast("HeardHeartbeats", heartbeats))
        self.store(5, 100)
        self.fold = MetadataFold(self.check.judge)
        leaderless = wire.PartitionRecord(
            0, TOPIC, [1, 2, 3], list(isr), [], [], -1, 0, LEADER_EPOCH, 0, list(DIRS.values()), [], []
        )
        self.commit(*registrations(high), wire.TopicRecord("one", TOPIC), leaderless)

    def store(self, epoch: int, end_offset: int) -> None:
        """Let the log on each disk end here."""
        header = HEADER.pack(
            *(epoch if place == 2 else 0 for place in range(len(HEADER.unpack(bytes(HEADER.size)))))
        )
        walk = SimpleNamespace(next_offset=end_offset, last_header=header)
        stored: Any = SimpleNamespace(segments=lambda disk, path: [(0, None)], walk=lambda inode: walk)
        self.check._stored = stored

    def commit(self, *records: Message) -> None:
        self.fold.take(self.fold.offset + len(records), 1, records)

    def report(
        self, broker_id: int, epoch: int, end: int, *, life: int | None = None, is_heard: bool = True
    ) -> None:
        """Send a broker's report of a log that its disk has."""
        self.store(epoch, end)
        self.say(broker_id, epoch, end, broker_id if life is None else life, is_heard=is_heard)

    def say(self, broker_id: int, epoch: int, end: int, life: int, *, is_heard: bool = True) -> None:
        info = PartitionLogInfo(0, epoch, LEADER_EPOCH, end, 0)
        request = BrokerHeartbeatRequest(
            broker_id, life, 99, topic_partition_log_info_list=[TopicPartitionLogInfo(TOPIC, [info])]
        )
        conn = SimpleNamespace(peer_name="node-9", peer=None)
        exchange = Exchange(cast("SimConn", conn), 63, 2, request)
        assert self.check.asked(exchange)
        if is_heard:
            self.check.answered(exchange, BrokerHeartbeatResponse(0, 0))

    def elect(self, leader: int) -> None:
        self.commit(
            wire.PartitionChangeRecord(0, TOPIC, isr=[leader], leader=leader, leader_recovery_state=1)
        )


def test_a_true_report() -> None:
    """A report with the epoch of the last batch and its end is accepted."""
    stage = Stage()
    stage.say(1, 5, 100, 1)
    assert stage.check.reports_seen == 1


@pytest.mark.parametrize(("epoch", "end"), [(6, 100), (5, 101)])
def test_a_report_that_the_log_denies(epoch: int, end: int) -> None:
    """Another epoch or another end than that of the last batch is noticed."""
    with pytest.raises(SafetyViolation, match="its bytes end at 100 in epoch 5"):
        Stage().say(1, epoch, end, 1)


def test_a_report_of_deleted_records() -> None:
    """A log whose records are all deleted may name a later epoch, and never an earlier one."""
    stage = Stage()
    stage.log.log_start_offset = 100
    stage.say(1, 6, 100, 1)
    with pytest.raises(SafetyViolation, match="its bytes end at 100 in epoch 5"):
        stage.say(1, 4, 100, 1)


def test_a_report_that_was_late() -> None:
    """A report is left out when a replica leads again, since the log may have changed."""
    stage = Stage()
    stage.image.leader = 2
    stage.say(1, 6, 100, 1)
    assert stage.check.reports_seen == 0


def test_the_best_report_wins() -> None:
    """A newer epoch wins over a longer log, and a longer log in the same epoch."""
    stage = Stage()
    stage.report(1, 5, 100)
    stage.report(2, 6, 90)
    stage.report(3, 6, 95, is_heard=False)
    stage.elect(3)
    assert stage.check.elections_seen == 1


@pytest.mark.parametrize(("leader", "epoch", "end"), [(1, 4, 200), (1, 5, 99)])
def test_a_winner_that_is_not_the_best(leader: int, epoch: int, end: int) -> None:
    """A winner with an older epoch or a shorter log is noticed."""
    stage = Stage()
    stage.report(2, 5, 100)
    stage.report(leader, epoch, end)
    with pytest.raises(SafetyViolation, match=r"elects 1 .* broker 2 has"):
        stage.elect(leader)


def test_a_winner_by_the_report_of_an_earlier_life() -> None:
    """A report of an earlier registration does not count for its broker."""
    stage = Stage()
    stage.report(2, 5, 100)
    stage.report(1, 6, 200, life=0)
    with pytest.raises(SafetyViolation, match=r"elects 1 .* in its epoch 1, and broker 2 has"):
        stage.elect(1)


@pytest.mark.parametrize("reason", ["earlier life", "fenced", "not heard", "not known", "a candidate"])
def test_better_reports_that_do_not_count(reason: str) -> None:
    """A better report is left out if its broker or the cluster has changed, or the controller has yet to answer it."""
    stage = Stage(high=0 if reason == "not known" else 1, isr=(1,) if reason == "a candidate" else ())
    stage.report(1, 4, 50)
    stage.report(2, 5, 100, life=0 if reason == "earlier life" else 2, is_heard=reason != "not heard")
    if reason == "fenced":
        stage.commit(wire.FenceBrokerRecord(2, 2))
    stage.elect(1)


KEY = TopicIdPartition(TOPIC, 0)
ELECT = "odradek.metadata_quorum.controller.unclean_recovery:Recovery.elect"
TIMES = 50


def waiting(*, high: int = 1, leader: int = -1) -> MetadataImage:
    """Make an image with a partition without candidates on three brokers."""
    builder = ImageBuilder(MetadataImage.empty("c"))
    for number, directory in DIRS.items():
        record = wire.RegisterBrokerRecord(
            broker_id=number, broker_epoch=number, incarnation_id=directory, log_dirs=[directory]
        )
        record.features = [wire.BrokerFeature(REPLICA_LOG_INFO, 0, high)]
        builder.replay(number, record, 1)
    feature = wire.ControllerFeature(REPLICA_LOG_INFO, 0, high)
    builder.replay(
        4, wire.RegisterControllerRecord(controller_id=9, incarnation_id=TOPIC, features=[feature]), 1
    )
    builder.replay(5, wire.TopicRecord("one", TOPIC), 1)
    isr = [] if leader < 0 else [leader]
    builder.replay(
        6,
        wire.PartitionRecord(
            0, TOPIC, [1, 2, 3], isr, [], [], leader, 0, 7, 0, list(DIRS.values()), [], [2, 1]
        ),
        1,
    )
    return builder.build()[0]


def test_the_product_elects_the_best_report() -> None:
    """The product's rule passes each rehearsal."""
    random = Random(1)
    assert sum(rehearse_election(waiting(), KEY, random) for _ in range(TIMES)) > TIMES / 2


def test_only_partitions_that_wait_are_rehearsed() -> None:
    """Only a partition without candidates is rehearsed, and only if all nodes know these reports."""
    random = Random(1)
    assert not rehearse_election(waiting(leader=1), KEY, random)
    assert not rehearse_election(waiting(high=0), KEY, random)
    assert not rehearse_election(waiting(), TopicIdPartition(TOPIC, 1), random)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("info.last_written_leader_epoch, info.log_end_offset,", "info.log_end_offset, 0,"),
        ("and self.brokers[broker_id].epoch == info.broker_epoch", ""),
    ],
)
def test_another_rule_is_noticed(old: str, new: str) -> None:
    """A rule that prefers long logs, or believes an earlier registration, elects another replica."""
    random = Random(1)
    with patched(ELECT, old, new), pytest.raises(SafetyViolation, match="rehearsed election"):
        assert sum(rehearse_election(waiting(), KEY, random) for _ in range(TIMES))
