"""Replication of a broker: which leaders it fetches from, throttles by configuration, and the search for
lagging followers. PORTED. It also sends its partitions' requests to the controller.

A broker has one object of this kind. Partitions use it to learn the state of the cluster
(`PartitionCluster`). The broker passes to it every partition that the metadata changes (`follow_metadata`),
and every partition that it no longer serves (`forget`). The tasks of this object begin when there is
something to do. A broker runs them only if one of its partitions has other replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.first_fetches import FirstFetches
from odradek.data_plane.replication.following.departures import Departures
from odradek.data_plane.replication.following.fetcher import LeaderFetcher
from odradek.data_plane.replication.following.leader_connection import RECEIVE_BYTES, SharedByFetchers
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.isr_changes import AlterPartitionSender
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.partition_cluster import UNKNOWN_BROKER_EPOCH
from odradek.data_plane.replication.peer_silence import PeerSilence
from odradek.data_plane.replication.remote_replica import TROUBLED_LAG_MS_MAX
from odradek.data_plane.replication.replication_settings import ReplicationSettings
from odradek.data_plane.replication.throttle import FOLLOWER, LEADER, ReplicationThrottle
from odradek.env.ports import Env, TaskGroup
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.image.metadata_image import NO_LEADER
from odradek.metadata_quorum.ports import PeerChannel
from odradek.named_states import reached
from odradek.serving.disk_troubles import Trouble
from odradek.serving.timers import Timers
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicIdPartition

NO_BROKER_EPOCH = -1
SYNC_PAUSE_SECONDS = 1.0
"""The time in seconds after which a leader repeats a sync that the disk has refused."""


class ReplicationHost(BrokerHost, Protocol):
    """The interface of the broker that replication uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def env(self) -> Env: ...

    @property
    def tasks(self) -> TaskGroup: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def hosted(self) -> HostedTopics: ...

    @property
    def controller(self) -> PeerChannel: ...

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def suspicion_ms(self) -> int: ...

    def suspect(self, partition: Partition, offset: int) -> None:
        """Request a check of the bytes at this offset of the partition's log, because they may differ from the
        bytes that were written.
        """

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        """Flush the partition's log, and then call `done` with None or the error."""

    def run_woken(self) -> None:
        """Answer the parked requests that an event has woken."""


class Replication:
    """The part of a broker that replicates partitions from leaders and to followers."""

    def __init__(self, broker: ReplicationHost, settings: ReplicationSettings) -> None:
        self._broker = broker
        self._newest = broker.newest
        self.settings = settings
        self.node_id = broker.node_id
        self.broker_epoch = NO_BROKER_EPOCH
        """The epoch of this broker's registration. Before it has one, the broker fetches nothing."""
        self.leader_throttle = ReplicationThrottle(self.node_id, LEADER)
        self.follower_throttle = ReplicationThrottle(self.node_id, FOLLOWER)
        self.isr_changes = AlterPartitionSender(
            self.node_id,
            broker.controller,
            broker.clock,
            broker.tasks,
            self._own_epoch,
            timeout_ms=broker.request_timeout_ms,
            after_answer=broker.run_woken,
            log=broker.log,
        )
        self.silence = PeerSilence(broker.suspicion_ms, settings.fetch_wait_ms_max, self._awaits_fetches_of)
        self.departures = Departures(broker.env, self._has_ended, lambda: self.fetchers.keys())
        self.first_fetches = FirstFetches()
        self._fetchers: dict[int, LeaderFetcher] = {}
        """One fetcher for each leader that this broker follows, by the leader's id."""
        self.reassignment_bytes_out = 0
        """The number of bytes read by followers that a reassignment is adding."""
        self._followed_at: dict[TopicIdPartition, int] = {}
        self._shared_by_fetchers: SharedByFetchers | None = None
        """The objects that fetchers share. They are made with the first fetcher, because a broker that follows
        no leader needs no buffer.
        """
        self._watches_lag = False
        self._watches_troubles = False
        self._is_stopped = False

    # -- throttles ------------------------------------------------------------------------------------------------

    def set_throttled_rates(self, layers: BrokerConfigLayers) -> None:
        """Set the rates of both throttles from the broker's configuration.

        Partitions that wait because of the follower's former rate try again at once. At a former rate of 1
        KB/s they might otherwise wait for hours.
        """
        self.leader_throttle.set_rate(layers)
        if self.follower_throttle.set_rate(layers):
            self._retry_now()

    def set_throttled_replicas(self, topic_id: bytes, configs: Mapping[str, str]) -> None:
        """Set which replicas of a topic are throttled. Replicas that are no longer throttled try again at
        once.
        """
        self.leader_throttle.set_replicas(topic_id, configs)
        if self.follower_throttle.set_replicas(topic_id, configs):
            self._retry_now()

    def forget_throttled(self, topic_id: bytes) -> None:
        """Forget the throttled replicas of a topic that was deleted."""
        self.leader_throttle.forget(topic_id)
        self.follower_throttle.forget(topic_id)

    def _own_epoch(self) -> int:
        return self.broker_epoch

    # -- the port of the partitions (PartitionCluster) -----------------------------------------------------------

    @property
    def lag_ms_max(self) -> int:
        return self.settings.lag_ms_max

    def now_ms(self) -> int:
        return int(self._broker.clock.monotonic() * 1000)

    def is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        known = self._newest.image.brokers.get(broker_id)
        return (
            known is not None
            and known.is_active
            and known.epoch == broker_epoch
            and known.holds_online(directory)
        )

    def is_troubled(self, directory: bytes) -> bool:
        listed = self._newest.image.troubled_directories
        return any(directory in ids for ids in listed.values()) if listed else False

    def registered_epoch(self, broker_id: int) -> int:
        known = self._newest.image.brokers.get(broker_id)
        return NO_BROKER_EPOCH if known is None else known.epoch

    def is_alive(self, broker_id: int) -> bool:
        known = self._newest.image.brokers.get(broker_id)
        return known is not None and not known.fenced

    def alter_isr(self, partition: Partition) -> None:
        self.isr_changes.submit(partition)

    def suspect(self, partition: Partition, offset: int) -> None:
        self._broker.suspect(partition, offset)

    def sync(self, partition: Partition, ended: Callable[[], None]) -> None:
        broker = self._broker
        recovery_point = partition.log.recovery_point

        def done(failure: KafkaError | None) -> None:
            if failure is None and partition.log.recovery_point > recovery_point:
                ended()
            else:
                # The cause may be temporary: a lack of room or descriptors, or a truncation in progress. So
                # let the caller try again after a pause.
                broker.timers.at(broker.clock.monotonic() + SYNC_PAUSE_SECONDS, ended)

        broker.sync_partition(partition, done)

    # -- events from the broker -----------------------------------------------------------------------------------

    def registered(self, broker_epoch: int) -> None:
        """Store the broker epoch that the controller has given to this broker."""
        self.broker_epoch = broker_epoch
        self._retry_now()

    def follow_metadata(self, partition: Partition) -> None:
        """Begin to fetch this partition from the leader that the metadata names, or stop if this broker does
        not follow.
        """
        log = partition.log
        replica = TopicIdPartition(log.topic_id, log.partition)
        image = partition.image
        if image is None or image.leader in (self.node_id, NO_LEADER) or self._is_stopped:
            self._unfollow(replica)
            if partition.followers:
                self._watch_lag()
                self._await_first_fetches(replica, partition)
            return
        known = self._followed_at.get(replica)
        if known is not None and known != image.leader:
            self._unfollow(replica)
        self._followed_at[replica] = image.leader
        fetcher = self._fetcher(image.leader)
        fetcher.follow(replica, partition)
        if not fetcher.is_running:
            fetcher.is_running = True
            self._broker.tasks.start_soon(fetcher.run, name=f"fetch from broker {image.leader}")

    def _await_first_fetches(self, replica: TopicIdPartition, partition: Partition) -> None:
        clock = self._broker.clock
        new = [
            each.broker_id
            for each in partition.followers
            if each.broker_epoch == UNKNOWN_BROKER_EPOCH and self._may_fetch(each.broker_id, partition)
        ]
        for answer in self.first_fetches.awaits(replica, new, clock.monotonic()):
            # First the other partitions learn the new metadata.
            self._broker.timers.at(clock.monotonic(), answer)

    def _may_fetch(self, broker_id: int, partition: Partition) -> bool:
        """True if this follower is alive, and its replica's directory is online."""
        known, image = self._newest.image.brokers.get(broker_id), partition.image
        return (
            known is not None
            and not known.fenced
            and image is not None
            and known.holds_online(image.directory_of(broker_id))
        )

    def _has_ended(self, leader_id: int) -> bool:
        fetcher = self._fetchers.get(leader_id)
        return fetcher is not None and fetcher.has_ended()

    def forget(self, topic_id: bytes, index: int) -> None:
        """Stop following a partition that this broker no longer serves."""
        self._unfollow(TopicIdPartition(topic_id, index))

    def stop(self) -> None:
        """Stop following all leaders before the logs close. Otherwise fetches would confirm records that the
        last sync might miss.
        """
        self._is_stopped = True
        for replica in list(self._followed_at):
            self._unfollow(replica)

    def brokers_changed(self, broker_ids: Iterable[int]) -> None:
        """Retry fetches from brokers whose address, fencing or epoch has changed."""
        for broker_id in broker_ids:
            fetcher = self._fetchers.get(broker_id)
            if fetcher is not None:
                fetcher.retry_now()

    def _retry_now(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.retry_now()

    def _unfollow(self, replica: TopicIdPartition) -> None:
        leader = self._followed_at.pop(replica, None)
        if leader is not None:
            self._fetchers[leader].drop(replica)

    def _fetcher(self, leader_id: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            shared = self._shared_by_fetchers = self._shared_by_fetchers or self._share()
            fetcher = LeaderFetcher(leader_id, lambda: self.address_of(leader_id), shared)
            self._fetchers[leader_id] = fetcher
        return fetcher

    def _share(self) -> SharedByFetchers:
        broker = self._broker
        return SharedByFetchers(
            node_id=self.node_id,
            env=broker.env,
            settings=self.settings,
            broker_epoch=self._own_epoch,
            after_round=broker.run_woken,
            throttle=self.follower_throttle,
            silence=self.silence,
            departures=self.departures,
            sync=broker.sync_partition,
            timers=broker.timers,
            buffer=memoryview(bytearray(RECEIVE_BYTES)),
            log=broker.log,
        )

    def fetched_by(self, follower_id: int) -> None:
        """Note a fetch by a follower. Ids of brokers that do not exist are left out."""
        if follower_id in self._newest.image.brokers:
            self.silence.heard(follower_id, self._broker.clock.monotonic())

    def _awaits_fetches_of(self, broker_id: int) -> bool:
        return any(broker_id in each.isr_state.isr for each in self._led() if each.is_leader)

    def address_of(self, broker_id: int) -> tuple[str, int] | None:
        """Return the host and port at which a broker listens for other brokers; None while they are unknown."""
        known = self._newest.image.brokers.get(broker_id)
        endpoint = None if known is None else known.endpoint(self.settings.listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    # -- lagging followers ----------------------------------------------------------------------------------------

    def _watch_lag(self) -> None:
        if not self._watches_lag:
            self._watches_lag = True
            self._look_later()

    def _look_later(self) -> None:
        broker = self._broker
        broker.timers.at(broker.clock.monotonic() + self.settings.lag_ms_max / 2000, self._look_for_lag)

    def _look_for_lag(self) -> None:
        """Search for lagging followers twice per permitted lag, as Kafka does. So a follower leaves the ISR
        after 1 to 1.5 times the permitted lag.
        """
        now_ms = self.now_ms()
        if self._broker.env.buggify("isr.look_ahead"):
            now_ms += self.settings.lag_ms_max  # Now every replica that lacks a record counts as lagging.
        led = self._led()
        self._watches_lag = bool(led)
        if led:
            self._look_later()
        self._look_at(led, now_ms)

    def _look_at(self, led: Iterable[Partition], now_ms: int) -> None:
        for partition in led:
            log = partition.log
            try:
                self._look_at_lag(partition, now_ms)
            except Exception:
                reached("replication.look_failed")
                # A bug in one partition must not stop the search in the other partitions.
                self._broker.log.exception("isr.look_failed", topic=log.topic, partition=log.partition)

    def troubles_changed(self) -> None:
        """Search for lagging followers soon, because the reported list of troubled directories has changed."""
        if self._newest.image.troubled_directories and not self._watches_troubles:
            self._watches_troubles = True
            self._look_at_troubled_later()

    def _look_at_troubled_later(self) -> None:
        broker = self._broker
        broker.timers.at(broker.clock.monotonic() + TROUBLED_LAG_MS_MAX / 1000, self._look_at_troubled)

    def _look_at_troubled(self) -> None:
        """Search for lagging followers every second while any broker reports a troubled directory, so that
        leaders stop waiting for replicas there.
        """
        self._watches_troubles = bool(self._newest.image.troubled_directories)
        if self._watches_troubles:
            self._look_at_troubled_later()
            self._look_at(
                [
                    each
                    for each in self._led()
                    if each.image and any(map(self.is_troubled, each.image.directories))
                ],
                self.now_ms(),
            )

    def _led(self) -> list[Partition]:
        """List the partitions that this broker leads and that have followers. The list is a copy, because a
        woken request may change the hosted set.
        """
        return [each for each in self._broker.hosted.partitions() if each.followers]

    def _look_at_lag(self, partition: Partition, now_ms: int) -> None:
        log = partition.log
        partition.look_again()
        if isinstance(log.owner, LogDir) and log.owner.trouble is Trouble.HUNG:
            return
        lagging = partition.shrink_isr(now_ms)
        if lagging:
            self._broker.log.info(
                "isr.lagging", topic=log.topic, partition=log.partition, lagging=list(lagging)
            )

    def disk_answers(self, log_dir: LogDir) -> None:
        """Called when a hung device has answered again. Forgives the lag of the followers of its partitions,
        because they could not fetch while the device hung.
        """
        now_ms = self.now_ms()
        for partition in self._led():
            if partition.log.owner is log_dir:
                partition.followers.forgive_lag(partition.isr_state.isr, now_ms)

    @property
    def fetchers(self) -> dict[int, LeaderFetcher]:
        """The fetchers that fetch at least one partition, by the leader's id."""
        return {leader: fetcher for leader, fetcher in sorted(self._fetchers.items()) if fetcher.followed}

    @property
    def known_fetchers(self) -> dict[int, LeaderFetcher]:
        """The fetchers of all leaders that this broker has followed since its start, by the leader's id. Sums over them
        never fall.
        """
        return dict(sorted(self._fetchers.items()))

    def _count_led(self) -> tuple[int, int, int]:
        led = [each for each in self._broker.hosted.partitions() if each.is_leader]
        return (
            len(led),
            sum(1 for each in led if each.is_under_replicated),
            sum(1 for each in led if not each.has_min_isr),
        )

    def statistics(self, counts: tuple[int, int, int] | None = None) -> dict[str, Any]:
        """Return figures of all parts, for metrics. Each broker counts the partitions that it leads.

        A caller that has just counted them passes `counts`: led, under-replicated, and under `min.insync.replicas`.
        """
        led, under_replicated, under_min_isr = self._count_led() if counts is None else counts
        return {
            "led": led,
            "under_replicated": under_replicated,
            "under_min_isr": under_min_isr,
            "followed": len(self._followed_at),
            "isr_changes": self.isr_changes.statistics(),
            "fetchers": [fetcher.statistics() for fetcher in self.fetchers.values()],
        }
