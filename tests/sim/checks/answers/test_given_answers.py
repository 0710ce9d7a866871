"""Answers are checked against the cluster when they leave their broker. A wrong answer fails the run at once."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import attrs
import pytest

from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.deleted_records import DeletedRecords
from sim.checks.answers.eligible_replicas import EligibleReplicas
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.answers.replica_bytes import ReplicaBytes
from sim.checks.watched import Hosted, Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.cluster_members import SETTINGS, UPKEEP_SETTINGS
from sim.machine.weather import Weather
from sim.options import RunOptions
from sim.run import run
from tests.mutants.patching import patched

SECONDS = 6.0

QUICK_UPKEEP = {key: values[0] for key, values in UPKEEP_SETTINGS.items()}

PLANTED = {
    "acknowledged early": (
        "odradek.data_plane.replication.partition:Partition._acknowledge",
        "self.log.high_watermark, code",
        "self.log.log_end_offset, code",
        "acks=all: .* acknowledges all below .* which is in sync, has it up to",
    ),
    "deleted here alone": (
        "odradek.data_plane.replication.remote_replica:Followers._may_serve",
        "self._brokers.is_alive(broker_id) or",
        "False and",
        "is deleted, and broker .* would begin at .* after a restart",
    ),
    "coordinator answers early": (
        "odradek.data_plane.coordination.decision_log:CoordinatorLog.catch_up",
        "high_watermark = self._partition.log.high_watermark",
        "high_watermark = self._partition.log.log_end_offset",
        "(commit|transaction) .* and the high watermark is",
    ),
    "marker answered early": (
        "odradek.data_plane.transactions.marker_writer:MarkerWriter._append",
        "if log.high_watermark > result.last_offset:",
        "if True:",
        "markers: .* has answered .* which is in sync, has it up to",
    ),
    "markers of another outcome": (
        "odradek.data_plane.transactions.markers:_marker",
        "transaction.status is TransactionStatus.PREPARE_COMMIT",
        "transaction.status is TransactionStatus.PREPARE_ABORT",
        "markers: .* asks for .* and its log has decided",
    ),
    "change not seen": (
        "odradek.metadata_quorum.replica.publisher:MetadataPublisher.image_reaches",
        "self.image.offset < offset",
        "False",
        "own changes: .* confirms the .* and its own metadata do not have it",
    ),
}
"""By subject: function, old text, new text, and the expected complaint."""

WORKLOADS = {
    "deleted here alone": ("produce", "churn"),
    "coordinator answers early": ("produce", "group", "copy"),
    "marker answered early": ("produce", "copy"),
    "markers of another outcome": ("produce", "copy"),
    "change not seen": ("produce", "churn"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_an_answer_that_came_too_early_fails_at_once(name: str) -> None:
    """A planted bug sends an answer too early. The quiet run ends with a complaint about this answer, although no data
    is lost."""
    function, old, new, complaint = PLANTED[name]
    options = RunOptions.draw(2, "calm", nodes=3, controllers=0, seconds=SECONDS)
    shape = attrs.evolve(options.shape, settings={**SETTINGS, **QUICK_UPKEEP}, older=0, segment_bytes=0)
    weather = Weather(latency_seconds=(0.001, 0.02))
    workloads = WORKLOADS.get(name, ("produce", "consume"))
    options = attrs.evolve(options, shape=shape, weather=weather, workloads=workloads, duties=())
    with patched(function, old, new):
        result = run(2, options)
    assert result.verdict == "safety", result.message
    with pytest.raises(SafetyViolation, match=complaint):
        raise SafetyViolation(result.message)


KEY = TopicIdPartition(b"t" * 16, 0)


def _eligible(image: PartitionImage, reach: dict[int, int], robbed: frozenset[int]) -> EligibleReplicas:
    """Make the check for one partition, with the log end of each broker."""
    newest = SimpleNamespace(
        image=None,
        on_change=[],
        refresh=lambda: None,
        partition=lambda key: image,
        name=lambda key: "t-0",
    )
    replicas = SimpleNamespace(
        was_robbed=lambda broker_id, key: broker_id in robbed,
        has_lost=lambda broker_id, key: broker_id in robbed,
        reach=lambda broker_id, key: reach[broker_id],
    )
    check = EligibleReplicas(cast("NewestMetadata", newest), cast("ReplicaBytes", replicas))
    check._on_change(KEY, image)
    return check


def _leader(high_watermark: int, leader_epoch: int, partition_epoch: int = 0) -> Hosted:
    log = SimpleNamespace(high_watermark=high_watermark)
    partition = SimpleNamespace(
        is_leader=True, partition_epoch=partition_epoch, leader_epoch=leader_epoch, log=log, image=None
    )
    return cast("Hosted", SimpleNamespace(key=KEY, partition=partition))


@pytest.mark.parametrize(
    ("isr", "elr", "last_known", "why"),
    [
        ((1, 2), (), (), "is in sync"),
        ((1,), (2,), (), "is eligible to lead"),
        ((), (), (2,), "was in sync last"),
    ],
)
def test_a_replica_that_may_lead_has_all_that_was_committed(
    isr: tuple[int, ...], elr: tuple[int, ...], last_known: tuple[int, ...], why: str
) -> None:
    """Each replica that may become leader must have all committed records, unless a fault destroyed the end of its
    log."""
    image = PartitionImage(1, 5, 9, (1, 2, 3), isr, elr=elr, last_known_elr=last_known)
    with pytest.raises(SafetyViolation, match=f"t-0: broker 2, which {why}, has it up to 7, .* watermark 8"):
        _eligible(image, {1: 8, 2: 7}, frozenset()).look([_leader(8, 5)])
    _eligible(image, {1: 8, 2: 8}, frozenset()).look([_leader(8, 5)])
    _eligible(image, {1: 8, 2: 7}, frozenset({2})).look([_leader(8, 5)])


def test_a_leader_that_knows_more_than_all_images_is_waited_for() -> None:
    """If a leader's partition epoch is newer than in every image, the check is postponed, since the ISR may have
    changed."""
    image = PartitionImage(1, 5, 9, (1, 2, 3), (1,), elr=(2,))
    check = _eligible(image, {1: 8, 2: 7}, frozenset())
    check.look([_leader(8, 5, partition_epoch=10)])
    with pytest.raises(SafetyViolation, match="is eligible to lead"):
        check.look([_leader(8, 5, partition_epoch=9)])


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_deletion_does_not_wait_for_a_broker_that_was_fenced_a_moment_ago(is_fenced: bool) -> None:
    """The image that fences a broker makes its leader answer, before any check has seen that image. Found by seed 13."""
    broker = SimpleNamespace(fenced=False, epoch=5)
    topic = SimpleNamespace(topic_id=KEY.topic_id)
    image = SimpleNamespace(offset=10, brokers={1: broker, 3: broker}, topics={"one": topic})
    partition = SimpleNamespace(replicas=(1, 3), elr=())
    log = SimpleNamespace(topic="one", partition=0)
    hosted = SimpleNamespace(image=partition, is_leader=True, log=log)
    node = SimpleNamespace(
        broker=SimpleNamespace(hosted=SimpleNamespace(partition=lambda *_: hosted), image=image)
    )
    found = (SimpleNamespace(name="node-1"), node)
    seen: list[str] = []
    newest = SimpleNamespace(
        image=image,
        refresh=lambda: seen.append("newest"),
        partition=lambda _: partition,
        was_active_since=lambda broker_id, _: not (seen and is_fenced and broker_id == 3),
    )
    replicas = SimpleNamespace(
        start_offset=lambda broker_id, _: 45 if broker_id == 1 else 28,
        has_lost=lambda *_: False,
        living=lambda _: SimpleNamespace(replication=SimpleNamespace(broker_epoch=5)),
    )
    check = DeletedRecords(
        cast("Processes", SimpleNamespace(at=lambda _: found)),
        cast("NewestMetadata", newest),
        cast("ReplicaBytes", replicas),
    )
    exchange = cast("Exchange", SimpleNamespace(conn=SimpleNamespace(peer="p"), memo=None))
    assert check.asked(exchange)
    answer = DeleteRecordsResponse(
        0, [DeleteRecordsTopicResult("one", [DeleteRecordsPartitionResult(0, 45, 0)])]
    )
    with nullcontext() if is_fenced else pytest.raises(SafetyViolation, match="broker 3 would begin at 28"):
        check.answered(exchange, answer)
    assert check.seen == 1
