"""The environment of a simulated transaction coordinator: the part of a broker that the coordinator uses. PORTED.

The coordinator, its state machine, its log and its markers are the product's (`odradek.data_plane.transactions`).
Here the coordinator's requests to partition leaders are `Letter`s. The schedule decides when each one arrives, and
whether its sender still waits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast

import attrs

from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication.hosted_topics import HostedTopic
from odradek.data_plane.transactions.coordinator import TransactionCoordinator, TransactionShard
from odradek.data_plane.transactions.peers import BrokerPeers
from odradek.data_plane.transactions.producer_ids import ProducerIds
from odradek.data_plane.transactions.transactions_topic import TRANSACTIONS_TOPIC, TransactionSettings
from odradek.metadata_quorum.features import TRANSACTION_VERSION
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from odradek.serving.layered_map import LayeredMap
from odradek.wire.errors import ErrorCode
from sim.alone.by_hand import ByHand, Pause
from sim.alone.replication_broker import TOPIC_ID, Broker
from sim.alone.transactions.written_partition import TOPIC, WrittenPartition

__all__ = ["Ids", "Letter", "Post", "TransactionHost"]

DATA_TOPIC_ID = bytes(range(2, 18))
SETTINGS = TransactionSettings(
    timeout_ms_max=60_000,
    id_expiration_ms=1 << 40,
    expiry_interval_ms=60_000,
    timeout_check_interval_ms=500,
    two_phase_commit=False,
    topic_partitions=1,
    topic_replication_factor=3,
    topic_segment_bytes=1 << 20,
    topic_min_isr=2,
)


@attrs.define(eq=False)
class Letter:
    """A request of a coordinator to a partition leader, or the answer on its way back."""

    to: int
    """The id of the broker that the sender considers the leader."""
    request: Any
    answer: Any = None
    is_awaited: bool = True
    """False once the sender has stopped waiting. The request may still arrive."""
    is_over: bool = False
    """True once the sender has an answer, or knows that no answer will come."""


class Post:
    """All requests to partition leaders that have not arrived yet."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []

    def send(self, letter: Letter) -> None:
        self.letters.append(letter)


class _Peers:
    """`odradek.data_plane.transactions.peers.BrokerPeers` that sends requests as `Letter`s."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def coordinator_of(self, partition: int) -> int | None:
        """Return None: the leaders of the written partitions have no coordinator here."""
        return None

    async def ask(self, broker_id: int, request: Any) -> tuple[ErrorCode, Any]:
        letter = Letter(broker_id, request)
        self._post.send(letter)
        while not letter.is_over:
            await Pause()
        return (
            (ErrorCode.NETWORK_EXCEPTION, None) if letter.answer is None else (ErrorCode.NONE, letter.answer)
        )

    def close(self) -> None:
        """Do nothing: there are no connections."""


class Ids:
    """A source of producer ids that never runs out."""

    def __init__(self) -> None:
        self._next_id = 1000

    def take(self) -> int:
        self._next_id += 1
        return self._next_id


class TransactionHost(ByHand):
    """A transaction coordinator, and the part of its broker that the coordinator uses. Each run of the broker's
    process has its own object.
    """

    request_timeout_ms = 5_000

    def __init__(
        self,
        broker: Broker,
        written: list[WrittenPartition],
        post: Post,
        ids: Ids,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(broker, now_ms)
        self._written = written
        self.node_id = broker.node_id
        self.woken: list[Callable[[], None]] = []
        hosted = HostedTopic(TRANSACTIONS_TOPIC, TOPIC_ID, broker.log.config)
        hosted.partitions[0] = broker.partition
        self.topics = {TRANSACTIONS_TOPIC: hosted}
        self.newest = NewestImage(self._image())
        self.coordinator = TransactionCoordinator(
            cast("Any", self), SETTINGS, cast("ProducerIds", ids), peers=cast("BrokerPeers", _Peers(post))
        )

    def _image(self) -> MetadataImage:
        state = TopicImage(TRANSACTIONS_TOPIC, TOPIC_ID, {0: cast("Any", None)})
        leaders = {
            each.index: PartitionImage(each.leader, 0, 0, (each.leader,), (each.leader,), (bytes(16),))
            for each in self._written
        }
        data = TopicImage(TOPIC, DATA_TOPIC_ID, leaders)
        return MetadataImage(
            topics=LayeredMap({TRANSACTIONS_TOPIC: state, TOPIC: data}),
            features={TRANSACTION_VERSION: 2},
        )

    def learn(self) -> None:
        """Update the broker's metadata to the present leaders of the partitions that transactions write."""
        self.newest.image = self._image()

    def run_woken(self) -> None:
        """Run the actions that were deferred to the end of this turn."""
        while self.woken:
            woken, self.woken = self.woken, []
            for action in woken:
                action()

    @property
    def shard(self) -> TransactionShard | None:
        """The coordinator's shard for the only partition; None while this broker does not lead it."""
        return self.coordinator.shards.get(0)

    def work(self, random: Random) -> None:
        super().work(random)
        self.run_woken()
