"""A produce request that waits for replicas, for a flush, or for its deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from odradek.data_plane.handlers.producing.delayed_produce import DelayedProduce
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.serving.timers import Timers
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceResponse
from testkit.by_hand import NOW_MS, ManualClock
from tests.log.support import batch, new_log

TIMEOUT_MS = 1000
BOTH, ALONE, GONE = (
    PartitionImage(1, 3, 0, (1, 2), (1, 2)),
    PartitionImage(1, 3, 1, (1, 2), (1,)),
    PartitionImage(2, 4, 1, (1, 2), (2,)),
)
TIMED_OUT, NOT_LEADER = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER


class FakeBroker:
    """The part of a broker that a waiting Produce uses; flushes end when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock, cast("Callable[[], Any]", _Event))
        self.flushes: list[Callable[[KafkaError | None], None]] = []
        self.loss = NOT_LEADER

    def lost_error(self, partition: Partition) -> ErrorCode:
        return self.loss

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        self.flushes.append(done)


class _Event:
    def set(self) -> None:
        """Do nothing, since no task sleeps."""


class Case:
    """One batch at offset 0 of a partition. The other replica has not fetched it yet."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.partition = Partition(new_log(LogConfig()))
        self.partition.apply(BOTH, 1)
        self.partition.append_as_leader(memoryview(batch()), NOW_MS)
        self.answer = PartitionProduceResponse(0, 0, 0, -1, 0)
        self.response = ProduceResponse([], 0, [])
        broker: Any = self.broker
        self.produce = DelayedProduce(broker, broker, self.response, TIMEOUT_MS)

    def wait(self, *, replicas: bool = True, flush: bool = False) -> None:
        if flush:
            self.produce.wait_for_sync(self.partition, self.answer)
        if replicas:
            self.produce.wait_for_replicas(self.partition, 0, self.answer)
        self.produce.check()
        assert self.produce.response is None

    def expire(self) -> None:
        self.broker.timers.fire_due(TIMEOUT_MS / 1000)

    def assert_answered(self, code: ErrorCode) -> None:
        """Check that the request was answered once, with this code, and that nothing waits for it any more."""
        assert self.produce.response is self.response
        assert self.answer.error_code == code
        assert self.answer.base_offset == (-1 if code else 0)
        assert watchers(self.partition) == 0
        self.expire()
        assert self.answer.error_code == code


def watchers(partition: Partition) -> int:
    return len(partition.waiting.watchers or ())


def test_it_completes_when_the_high_watermark_passes() -> None:
    """A request with acks=all is answered when all in-sync replicas have the record."""
    case = Case()
    case.wait()
    case.partition.apply(ALONE, 1)
    case.assert_answered(ErrorCode.NONE)


def test_it_fails_when_the_leadership_goes() -> None:
    """If the leadership moves, the answer is NOT_LEADER_OR_FOLLOWER: the next leader decides whether the record
    survives."""
    case = Case()
    case.wait()
    case.partition.apply(GONE, 1)
    case.assert_answered(NOT_LEADER)


def test_a_leadership_that_is_lost_before_the_last_append_is_not_forgotten() -> None:
    """If the broker loses the leadership and wins it back before the last append, the answer is
    NOT_LEADER_OR_FOLLOWER."""
    case = Case()
    case.produce.wait_for_replicas(case.partition, 0, case.answer)
    case.partition.apply(GONE, 1)
    case.partition.apply(PartitionImage(1, 5, 2, (1, 2), (1,)), 1)
    case.expire()
    assert case.produce.response is None
    case.produce.check()
    case.assert_answered(NOT_LEADER)


@pytest.mark.parametrize(("replicas", "flush"), [(True, False), (False, True)])
@pytest.mark.parametrize("loss", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR])
def test_it_fails_when_the_partition_goes(replicas: bool, flush: bool, loss: ErrorCode) -> None:
    """If the topic is deleted or the disk fails, the answer has that error, as in Kafka's `DelayedProduce`."""
    case = Case()
    case.wait(replicas=replicas, flush=flush)
    case.broker.loss = loss
    case.partition.is_leader = False
    case.partition.wake_watchers()
    for done in case.broker.flushes:
        done(None)
    case.assert_answered(loss)


@pytest.mark.parametrize(("replicas", "flush"), [(True, False), (False, True), (True, True)])
def test_it_times_out(replicas: bool, flush: bool) -> None:
    """A request gets REQUEST_TIMED_OUT exactly at its deadline, even while its flush is still running."""
    case = Case()
    case.wait(replicas=replicas, flush=flush)
    case.broker.timers.fire_due(TIMEOUT_MS / 1000 - 0.001)
    assert case.produce.response is None
    case.expire()
    case.assert_answered(TIMED_OUT)
    for done in case.broker.flushes:
        done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "too late"))
    case.assert_answered(TIMED_OUT)


def test_a_flush_and_the_replicas_are_both_awaited() -> None:
    """The answer waits for both the flush and the replicas, in whichever order they finish."""
    for flush_first in (True, False):
        case = Case()
        case.wait(flush=True)
        steps: list[Callable[[], None]] = [
            lambda case=case: case.broker.flushes[0](None),  # type: ignore[misc]  # a default binds the loop variable
            lambda case=case: case.partition.apply(ALONE, 1),  # type: ignore[misc]  # as above
        ]
        for step in steps if flush_first else reversed(steps):
            assert case.produce.response is None
            step()
        case.assert_answered(ErrorCode.NONE)


def test_the_first_reason_stays() -> None:
    """The first error is the answer. A later loss of the leadership or a later timeout does not replace it."""
    failed = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk")
    case = Case()
    case.wait(flush=True)
    case.broker.flushes[0](failed)
    case.partition.apply(GONE, 1)
    case.assert_answered(ErrorCode.KAFKA_STORAGE_ERROR)
    case = Case()
    case.wait(flush=True)
    case.partition.apply(GONE, 1)
    case.expire()
    case.assert_answered(NOT_LEADER)


def test_an_abandoned_one_leaves_nothing() -> None:
    """After its connection has closed, a request has neither watchers nor a timer, and a later flush is harmless."""
    case = Case()
    case.wait(flush=True)
    case.produce.abandon()
    assert watchers(case.partition) == 0
    case.expire()
    assert case.produce.response is None
    case.partition.apply(ALONE, 1)
    case.broker.flushes[0](None)
    assert case.broker.timers.statistics()["timers"] == 0
