"""A leader and its followers without a network: the ISR, its effect on the high watermark, and waiting
acknowledgements."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from odradek.data_plane.log.log_config import LONG_MAX, LogConfig
from odradek.data_plane.replication.isr_state import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import batch, new_log

ME, LAG_MS_MAX, BROKER_EPOCH = 1, 1000, 50


class Cluster:
    """The leader's view of the other brokers, which the test sets."""

    lag_ms_max = LAG_MS_MAX

    def __init__(self) -> None:
        self.time_ms = 10_000
        self.ineligible: set[int] = set()
        self.proposals = 0
        self.known = {2: BROKER_EPOCH, 3: BROKER_EPOCH}
        """The broker epochs of registered brokers."""
        self.suspected: list[int] = []
        self.syncs: list[Callable[[], None]] = []
        """The syncs that are under way, each with the callback for its end."""

    def now_ms(self) -> int:
        return self.time_ms

    def is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        return broker_id not in self.ineligible and broker_epoch == self.known[broker_id]

    def is_troubled(self, directory: bytes) -> bool:
        return False

    def registered_epoch(self, broker_id: int) -> int:
        return self.known.get(broker_id, -1)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id not in self.ineligible

    def alter_isr(self, partition: Partition) -> None:
        self.proposals += 1

    def suspect(self, partition: Partition, offset: int) -> None:
        self.suspected.append(offset)

    def sync(self, partition: Partition, ended: Callable[[], None]) -> None:
        self.syncs.append(ended)


class Leader:
    """Broker 1 as leader of a partition of 1, 2 and 3, with leader epoch 3 and partition epoch 7."""

    def __init__(
        self,
        isr: tuple[int, ...] = (1, 2, 3),
        *,
        min_isr: int = 1,
        records: int = 0,
        flush_messages: int = LONG_MAX,
        replicas: tuple[int, ...] = (1, 2, 3),
    ) -> None:
        self.cluster = Cluster()
        self.config = LogConfig(min_insync_replicas=min_isr, flush_messages=flush_messages)
        self.partition = Partition(new_log(self.config), self.cluster)
        self.image = PartitionImage(ME, 3, 7, replicas, isr)
        for _ in range(records):
            self.partition.log.append(memoryview(batch()), 0, 2, NOW_MS)  # type: ignore[arg-type]  # Origin.CLIENT
        self.partition.apply(self.image, ME)

    def append(self) -> None:
        self.partition.append_as_leader(memoryview(batch()), NOW_MS)

    def fetch(self, follower: int, offset: int, *, broker_epoch: int = BROKER_EPOCH) -> int:
        """Let a follower fetch. Return the high watermark after it."""
        replica = self.partition.followers.sender(follower, has_epoch=True)
        self.partition.note_fetch(replica, broker_epoch, offset, 0, self.cluster.time_ms)
        return self.partition.log.high_watermark

    def told(self, partition_epoch: int, isr: tuple[int, ...]) -> None:
        self.partition.apply(attrs.evolve(self.image, partition_epoch=partition_epoch, isr=isr), ME)


class Waiter:
    """A batch with acks=all that waits for its acknowledgement."""

    def __init__(self, last_offset: int) -> None:
        self.last_offset = last_offset
        self.outcome: ErrorCode | str | None = None

    def acknowledged(self, code: ErrorCode) -> None:
        self.outcome = code

    def leadership_lost(self) -> None:
        self.outcome = "lost"


def test_the_slowest_in_sync_replica_holds_the_high_watermark() -> None:
    """The high watermark is the lowest offset of all in-sync replicas, as all of them must have a committed record."""
    leader = Leader()
    for _ in range(3):
        leader.append()
    assert [leader.fetch(2, 3), leader.fetch(3, 1), leader.fetch(3, 2), leader.fetch(3, 3)] == [0, 1, 2, 3]


def test_a_leader_wonders_about_a_follower_that_does_not_get_on() -> None:
    """If a follower keeps fetching the same offset although more records follow, the leader suspects its own log. It
    reports the suspicion again whenever the number of such fetches has doubled."""
    leader = Leader(records=3)
    for _ in range(5):
        leader.fetch(2, 3)
    assert leader.cluster.suspected == []
    leader.append()
    leader.fetch(2, 3)
    assert leader.cluster.suspected == []
    for _ in range(9):
        leader.fetch(2, 3)
    assert leader.cluster.suspected == [3, 3, 3]
    leader.fetch(2, 4)
    leader.append()
    leader.fetch(2, 4)
    assert leader.cluster.suspected == [3, 3, 3]


def test_a_replica_that_joins_counts_at_once_and_one_that_leaves_counts_still() -> None:
    """Until the controller answers, a joining replica already counts and a leaving one still counts (the
    maximal ISR)."""
    leader = Leader((1, 2))
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    assert isinstance(leader.partition.isr_state, PendingExpandIsr)
    leader.append()
    assert leader.fetch(2, 2) == 1
    leader.told(8, (1, 2, 3))
    assert isinstance(leader.partition.isr_state, CommittedIsr)
    leader.cluster.time_ms += LAG_MS_MAX + 1
    assert leader.fetch(2, 2) == 1
    assert leader.partition.shrink_isr(leader.cluster.time_ms) == (3,)
    assert isinstance(leader.partition.isr_state, PendingShrinkIsr)
    assert leader.fetch(2, 2) == 1
    leader.told(9, (1, 2))
    assert leader.partition.log.high_watermark == 2
    assert leader.cluster.proposals == 2


def test_who_joins_has_the_high_watermark_and_the_beginning_of_the_epoch() -> None:
    """KIP-279: a replica joins the ISR only with the high watermark and with the start of the leader epoch."""
    leader = Leader((1,), records=3)
    assert leader.partition.epoch_start_offset == 3
    leader.fetch(2, 2)
    assert not leader.partition.isr_state.is_pending
    leader.fetch(2, 3)
    assert leader.partition.isr_state.is_pending


@pytest.mark.parametrize("broker_epoch", [-1, BROKER_EPOCH - 1, BROKER_EPOCH + 1, 2**63 - 1])
def test_another_incarnation_promises_nothing(broker_epoch: int) -> None:
    """KIP-903: a fetch counts only with the registered broker epoch. An earlier incarnation or a stranger with a forged
    epoch changes nothing."""
    leader = Leader(isr=(1, 2))
    leader.append()
    for follower in (2, 3):
        if broker_epoch < BROKER_EPOCH:
            with pytest.raises(KafkaError) as refused:
                leader.fetch(follower, 1, broker_epoch=broker_epoch)
            assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            leader.fetch(follower, 1, broker_epoch=broker_epoch)
    assert leader.partition.log.high_watermark == 0
    assert not leader.partition.isr_state.is_pending
    assert leader.partition.followers.broker_epoch_of(2) == -1
    assert leader.fetch(2, 1) == 1
    leader.fetch(3, 1)
    assert leader.partition.isr_state.is_pending


def test_a_broker_that_is_not_registered_promises_nothing() -> None:
    """A fetch of an unregistered broker does not count, whatever it claims."""
    leader = Leader(isr=(1, 2))
    leader.append()
    del leader.cluster.known[2]
    assert leader.fetch(2, 1) == 0
    with pytest.raises(KafkaError) as refused:
        leader.fetch(2, 1, broker_epoch=-1)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_fenced_do_not_join() -> None:
    """KIP-841: a broker that is fenced or shutting down does not join the ISR."""
    leader = Leader((1,))
    leader.cluster.ineligible.add(2)
    leader.fetch(2, 0)
    assert leader.cluster.proposals == 0


@pytest.mark.reaches("replication.follower_unknown_yet")
def test_a_stranger_is_told_to_come_again() -> None:
    """An unknown follower gets UNKNOWN_LEADER_EPOCH, since it may know of a reassignment before this leader does."""
    leader = Leader()
    for has_epoch, code in (
        (True, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (False, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        with pytest.raises(KafkaError) as refused:
            leader.partition.followers.sender(9, has_epoch)
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("code", "again", "pending"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.INVALID_UPDATE_VERSION, False, True),
        (ErrorCode.FENCED_LEADER_EPOCH, False, True),
        (ErrorCode.NEW_LEADER_ELECTED, False, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, True),
    ],
)
def test_what_the_controller_refuses(code: ErrorCode, again: bool, pending: bool) -> None:
    """A refused proposal is dropped only if the error says that nothing has changed. Otherwise the leader waits for
    metadata."""
    leader = Leader((1,))
    leader.fetch(2, 0)
    proposal = leader.partition.isr_state
    assert isinstance(proposal, PendingExpandIsr)
    assert leader.partition.isr_refused(proposal, code) is again
    assert leader.partition.isr_state.is_pending is pending


def test_an_answer_and_the_metadata_may_come_in_any_order() -> None:
    """An answer or an image with an older partition epoch than the known one changes nothing."""
    leader = Leader((1,))
    leader.fetch(2, 0)
    proposal = leader.partition.isr_state
    assert isinstance(proposal, PendingExpandIsr)
    leader.partition.isr_decided(proposal, 3, 8, (1, 2))
    leader.told(7, (1,))
    assert leader.partition.isr_state.isr == (1, 2)
    leader.told(9, (1,))
    leader.partition.isr_decided(proposal, 3, 8, (1, 2))
    assert leader.partition.isr_state.isr == (1,)


def test_waiting_acks() -> None:
    """Waiting acknowledgements complete in the order of offsets, with an error if too few replicas are in sync
    by then."""
    leader = Leader(min_isr=2)
    waiters = [Waiter(offset) for offset in range(3)]
    for waiter in waiters:
        leader.append()
        leader.partition.waiting.wait_for_acks(waiter)
    leader.fetch(2, 3)
    leader.fetch(3, 2)
    assert [waiter.outcome for waiter in waiters] == [ErrorCode.NONE, ErrorCode.NONE, None]
    leader.partition.apply(attrs.evolve(leader.image, leader=2, leader_epoch=4, partition_epoch=8), ME)
    assert waiters[2].outcome == "lost"


@pytest.mark.reaches("replication.repeated_batch_waits")
def test_a_repeated_batch_waits_for_its_own_record_alone() -> None:
    """A producer repeats its first batch while later ones wait too. It is answered as soon as the first is committed."""
    leader = Leader()
    waiters = [Waiter(offset) for offset in (0, 1, 2, 0, 1)]
    for _ in range(3):
        leader.append()
    for waiter in waiters:
        leader.partition.waiting.wait_for_acks(waiter)
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    assert [waiter.outcome for waiter in waiters] == [ErrorCode.NONE, None, None, ErrorCode.NONE, None]
    leader.fetch(2, 3)
    leader.fetch(3, 3)
    assert all(waiter.outcome is ErrorCode.NONE for waiter in waiters)


def test_what_one_fetch_acknowledges_is_answered_newest_first() -> None:
    """Acknowledgements of one fetch complete newest first. The answer to the oldest request then sends all in
    one call."""
    leader = Leader()
    told: list[int] = []

    class Listening(Waiter):
        def acknowledged(self, code: ErrorCode) -> None:
            told.append(self.last_offset)

    for offset in range(4):
        leader.append()
        leader.partition.waiting.wait_for_acks(Listening(offset))
    leader.fetch(2, 4)
    leader.fetch(3, 3)
    assert told == [2, 1, 0]
    leader.fetch(3, 4)
    assert told == [2, 1, 0, 3]


def test_a_new_term_knows_nothing_of_the_last() -> None:
    """In a new leader epoch a follower's offset counts again only after its next fetch, since its log may have been
    cut."""
    leader = Leader()
    leader.append()
    leader.fetch(2, 1)
    leader.partition.apply(attrs.evolve(leader.image, leader_epoch=5, partition_epoch=9), ME)
    assert leader.fetch(3, 1) == 0
    assert leader.fetch(2, 1) == 1


def test_steady_load_is_not_lag() -> None:
    """Under steady load, a follower that fetches up to the previous end of the log each time is caught up."""
    leader = Leader()
    for offset in range(5):
        leader.append()
        leader.fetch(2, offset)
        leader.fetch(3, 0)
        leader.cluster.time_ms += LAG_MS_MAX // 3
    assert leader.partition.shrink_isr(leader.cluster.time_ms) == (3,)


def test_a_follower_serves_nobody_before_its_leader_has_agreed_with_its_log() -> None:
    """A follower serves consumers (KIP-392) only after its leader has confirmed the follower's log, which a power loss
    may have cut."""
    partition = Partition(new_log(), Cluster())
    for _ in range(3):
        partition.log.append(memoryview(batch()), 0, 2, NOW_MS)  # type: ignore[arg-type]  # Origin.CLIENT
    partition.log.advance_high_watermark(3)
    following = PartitionImage(2, 3, 7, (1, 2, 3), (1, 2, 3))
    partition.apply(following, ME)
    assert partition.reader_error(3) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert partition.reader_error(2) is ErrorCode.FENCED_LEADER_EPOCH
    partition.follow(2, 0)
    assert partition.reader_error(3) is ErrorCode.NONE
    partition.apply(attrs.evolve(following, leader=3, leader_epoch=4), ME)
    assert partition.reader_error(4) is ErrorCode.NONE, "what was committed once stays, whoever leads"


def test_a_leader_serves_consumers_at_once() -> None:
    """A leader serves consumers at once, since it has all committed records (KIP-207)."""
    assert Leader().partition.reader_error(3) is ErrorCode.NONE
