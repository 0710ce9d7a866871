"""A replica on its broker: when its high watermark moves, leader epochs, who is woken, and who shares a flush."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import batch, new_log

ME = 1


def image(
    leader: int = ME, epoch: int = 3, isr: tuple[int, ...] = (ME,), replicas: int = 3
) -> PartitionImage:
    return PartitionImage(leader, epoch, 0, tuple(range(1, replicas + 1)), isr)


def led(min_isr: int = 1, **fields: Any) -> Partition:
    """Make a partition that this broker has just learned to lead."""
    partition = Partition(new_log(LogConfig(min_insync_replicas=min_isr)))
    partition.apply(attrs.evolve(image(), **fields), ME)
    return partition


def produce(partition: Partition) -> None:
    partition.append_as_leader(memoryview(batch()), NOW_MS)


@pytest.mark.parametrize(
    ("min_isr", "isr", "replicas", "has_min_isr", "high_watermark"),
    [
        (1, (1,), 3, True, 1),
        (2, (1,), 3, False, 0),
        (3, (1,), 1, True, 1),  # one replica can only have a minimum of 1, see Kafka's effectiveMinIsr
        (1, (1, 2), 3, True, 0),  # replica 2 has not fetched the record yet
        (2, (1, 2), 3, True, 0),
        (3, (1, 2), 3, False, 0),
    ],
)
def test_the_gate(
    min_isr: int, isr: tuple[int, ...], replicas: int, has_min_isr: bool, high_watermark: int
) -> None:
    """KIP-966: the high watermark moves only while min.insync.replicas are in sync. If only the leader is, it moves at
    once."""
    partition = Partition(new_log(LogConfig(min_insync_replicas=min_isr)))
    partition.apply(image(isr=isr, replicas=replicas), ME)
    produce(partition)
    assert (partition.has_min_isr, partition.log.high_watermark) == (has_min_isr, high_watermark)
    partition.apply(image(isr=isr, replicas=replicas), ME)
    assert partition.log.high_watermark == high_watermark


def test_the_gate_opens_by_configuration() -> None:
    """If min.insync.replicas is lowered, waiting records are committed. If it is raised, the high watermark stays."""
    partition = led(2)
    produce(partition)
    woken: list[int] = []
    partition.waiting.watch(lambda: woken.append(partition.log.high_watermark))
    partition.set_config(LogConfig(min_insync_replicas=1))
    assert woken == [1]
    partition.set_config(LogConfig(min_insync_replicas=2))
    produce(partition)
    assert (woken, partition.log.high_watermark) == ([1], 1)


def test_the_high_watermark_never_falls() -> None:
    """The high watermark never falls, whatever leaders and replicas the controller announces."""
    partition = led()
    produce(partition)
    for word in (image(isr=(1, 2)), image(2, 4, (2,)), image(1, 5, (1, 2)), image(1, 5, (1,))):
        partition.apply(word, ME)
        assert partition.log.high_watermark == 1


def test_a_follower_does_not_move_the_high_watermark() -> None:
    """A follower never moves its high watermark by itself, since only the leader knows which replica has which
    records."""
    partition = led(2)
    produce(partition)
    partition.apply(image(2, 4, (2,)), ME)
    partition.set_config(LogConfig(min_insync_replicas=1))
    assert partition.log.high_watermark == 0


@pytest.mark.parametrize(
    ("leader", "asked", "code"),
    [
        (1, -1, ErrorCode.NONE),
        (1, 3, ErrorCode.NONE),
        (1, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (1, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (2, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (2, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epochs_fence(leader: int, asked: int, code: ErrorCode) -> None:
    """KIP-320: the leader epoch is checked before the leadership. Epoch -1 asks for no check."""
    assert led(leader=leader, isr=(leader,)).leader_error(asked) == code


def test_a_leader_epoch_that_falls_is_a_bug() -> None:
    """If the leader epoch falls, the broker stops with an `AssertionError`: the metadata log only raises it."""
    partition = led()
    with pytest.raises(AssertionError, match="leader epoch fell from 3 to 2"):
        partition.apply(image(epoch=2), ME)


def test_watchers_are_woken_once_per_change_in_their_order() -> None:
    """An append and a decision of the controller each wake every watcher once, the oldest watcher first."""
    partition = led(2)
    woken: list[str] = []
    partition.waiting.watch(lambda: woken.append("a"))
    partition.waiting.watch(lambda: woken.append("b"))
    produce(partition)
    assert woken == []
    partition.apply(image(replicas=1), ME)
    assert (woken, partition.log.high_watermark) == (["a", "b"], 1)
    produce(partition)
    assert woken == ["a", "b"] * 2
    partition.apply(image(2, 4, (2,)), ME)
    assert woken == ["a", "b"] * 3


def test_watchers_may_unwatch_while_being_woken() -> None:
    """If a watcher removes itself while it is called, the next one is still called. Removing it again does nothing."""
    partition = led()
    woken: list[str] = []

    def first() -> None:
        woken.append("first")
        partition.waiting.unwatch(first)

    partition.waiting.watch(first)
    partition.waiting.watch(lambda: woken.append("second"))
    produce(partition)
    produce(partition)
    partition.waiting.unwatch(first)
    assert woken == ["first", "second", "second"]


def test_flushes_are_shared() -> None:
    """The first waiter starts a flush. Waiters that come during a flush share the next flush, which begins
    afterwards."""
    partition = led()
    done: list[Callable[[KafkaError | None], None]] = [lambda failure: None for _ in range(3)]
    assert partition.waiting.wait_for_sync(done[0])
    assert not partition.waiting.wait_for_sync(done[1])
    assert partition.waiting.take_sync_waiters() == done[:2]
    assert not partition.waiting.wait_for_sync(done[2]), "a flush is under way"
    assert partition.waiting.take_sync_waiters() == done[2:]
    assert partition.waiting.take_sync_waiters() == []
    assert partition.waiting.wait_for_sync(done[0]), "nobody flushes any more"
