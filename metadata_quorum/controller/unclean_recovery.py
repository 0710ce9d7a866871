"""Unclean recovery (KIP-966): who is elected by the longest log, which reports are awaited, and which brokers
hold the election back after a recovery. It applies when all replicas that were in sync may have lost records.

After a power failure each machine has lost its unsynced bytes. A broker that restarts leaves ISR and ELR. If
ISR and ELR are then both empty, the partition waits for the replicas in `last_known_elr`. With their
heartbeats, brokers report where the logs of such replicas end: the leader epoch of the last record, and the
log end offset. (Brokers register after they have recovered their logs, so the report counts only records that
are still there.) The replica with the highest epoch is elected, and among several the one with the highest
offset. docs/internals/replication.md ("All lose power at once") has the argument.

* **An election waits** for the reports of all registered members of `last_known_elr`, and of all other
  replicas whose brokers are alive. A broker is alive if it is active, or fenced with a heartbeat in the last
  session timeout. (A new controller assumes for one session timeout that all are alive.) The election waits
  for at most `unclean.recovery.timeout.ms` after the first report. After that time the reports so far are
  enough, if one of them is from a member of `last_known_elr`.
* **A report is valid** for one registration of the broker and one leader epoch of the partition. The logs do
  not change until a replica leads.
* **Reports are soft state.** Brokers repeat them until a replica leads. A new controller begins without
  reports, and starts the timeout again.
* **After a recovery of the quorum, elections wait without a time limit.** The recovered log does not say
  which replicas were in sync. `AWAITED_BROKERS` lists the brokers whose disks may have acknowledged records.
  A partition without a leader waits for those of these brokers that are in its `last_known_elr`. This is so
  even with `unclean.leader.election.enable`. An operator may remove a broker from the list, or request an
  election. When no partition waits any more, the controller removes the list. A broker of `UNREAD_BROKERS`
  starts only if the metadata have all topics on its disks. The controller removes that list when all its
  brokers are active with all their directories.
* **All nodes must support unclean recovery.** A controller or a replica's broker may lack the feature,
  because it runs Apache Kafka or an earlier release. Then Kafka's rule applies: the last known leader is
  elected when it is back.

In KIP-966 the controller asks with GetReplicaLogInfo, which Kafka 4.3 does not have. The fields here have its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.features import REPLICA_LOG_INFO
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    BrokerImage,
    ControllerImage,
    FeatureRange,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.named_states import reached
from odradek.wire.messages.broker_heartbeat import TopicPartitionLogInfo
from odradek.wire.topic_partition import TopicIdPartition

__all__ = [
    "AWAITED_BROKERS",
    "UNREAD_BROKERS",
    "Recovery",
    "UncleanRecovery",
    "awaited_brokers",
    "is_held_back",
    "still_unread",
    "unread_brokers",
]

AWAITED_BROKERS = "odradek.recovery.awaited.brokers"
"""The name of a dynamic configuration for all brokers: a list of broker ids, separated by commas. The command
`odradek quorum recover` writes this list.
"""
UNREAD_BROKERS = "odradek.recovery.unread.brokers"
"""The name of a dynamic configuration for all brokers. It lists the brokers whose disks the recovery could not read,
or only in part. An entry is `ID`, or `ID:DIRECTORIES` with the number of the broker's log directories. The
recovered metadata may lack topics that only such a broker has.
"""


@attrs.frozen
class _LogInfo:
    broker_epoch: int
    last_written_leader_epoch: int
    log_end_offset: int


@attrs.frozen
class _Reports:
    """The reports about one partition in one leader epoch, by the id of the broker that sent them."""

    leader_epoch: int
    since_ms: int
    by_broker: dict[int, _LogInfo] = attrs.field(factory=dict)


def names_feature(features: Iterable[FeatureRange]) -> bool:
    """True if these registered features include unclean recovery."""
    return any(each.name == REPLICA_LOG_INFO and each.max_level >= 1 for each in features)


def waits_for_recovery(partition: PartitionImage) -> bool:
    """True if a partition lacks a leader, an ISR and eligible replicas. Then all its replicas may lack
    committed records.
    """
    return partition.leader == NO_LEADER and not partition.isr and not partition.elr


def awaited_brokers(image: MetadataImage) -> frozenset[int]:
    """Return the brokers in the list `AWAITED_BROKERS`, for which partitions wait without a time limit after
    a recovery of the quorum.
    """
    text = image.broker_configs(None).get(AWAITED_BROKERS, "")
    return frozenset(int(each) for each in text.split(",") if each.strip().isdecimal())


def unread_brokers(image: MetadataImage) -> dict[int, int]:
    """Return the brokers of `UNREAD_BROKERS`, each with the number of its log directories; 0 if the number is
    unknown.
    """
    text = image.broker_configs(None).get(UNREAD_BROKERS, "")
    pairs = [each.strip().partition(":") for each in text.split(",")]
    return {int(node): int(count) if count.isdecimal() else 0 for node, _, count in pairs if node.isdecimal()}


def still_unread(image: MetadataImage) -> dict[int, int]:
    """Return the entries of `unread_brokers` without the brokers that are active with all their directories."""
    return {
        node_id: count
        for node_id, count in unread_brokers(image).items()
        if (broker := image.brokers.get(node_id)) is None or broker.fenced or len(broker.log_dirs) < count
    }


def is_held_back(partition: PartitionImage, awaited: frozenset[int]) -> bool:
    """True if a partition waits for the log of an awaited broker. Then no leader is elected by the rules of
    its topic.
    """
    return (
        bool(awaited) and waits_for_recovery(partition) and not awaited.isdisjoint(partition.last_known_elr)
    )


class UncleanRecovery:
    """The reports of logs that this controller has received.

    `now_ms` is the monotonic time of the present decision.
    """

    def __init__(self, *, is_enabled: bool, timeout_ms: int, sessions: BrokerSessions) -> None:
        self._is_enabled = is_enabled
        self._timeout_ms = timeout_ms
        self._sessions = sessions
        self.now_ms = 0
        self._reports: dict[TopicIdPartition, _Reports] = {}
        self._view: Recovery | None = None

    def in_image(self, image: MetadataImage) -> Recovery | None:
        """Return the `Recovery` object for the brokers and controllers of this image. Returns None if unclean
        recovery is disabled, or some controller does not support it.
        """
        if not self._is_enabled:
            return None
        view = self._view
        if view is None or view.brokers is not image.brokers or view.controllers is not image.controllers:
            view = self._view = Recovery(self, image.brokers, image.controllers)
        return view if view.is_known else None

    def note(
        self, image: MetadataImage, broker: BrokerImage, topics: Iterable[TopicPartitionLogInfo]
    ) -> list[TopicIdPartition]:
        """Store a broker's reports, except outdated ones. Returns the partitions of the stored reports."""
        named: list[TopicIdPartition] = []
        for topic in topics:
            known: TopicImage | None = image.topics_by_id.get(topic.topic_id)
            for info in topic.partition_log_info:
                partition = None if known is None else known.partitions.get(info.partition)
                if (
                    partition is None
                    or not waits_for_recovery(partition)
                    or broker.broker_id not in partition.replicas
                    or info.current_leader_epoch != partition.leader_epoch
                    or info.error_code
                ):
                    reached("controller.outdated_report_left_out")
                    continue
                key = TopicIdPartition(topic.topic_id, info.partition)
                reports = self._reports.get(key)
                if reports is None or reports.leader_epoch != partition.leader_epoch:
                    reports = self._reports[key] = _Reports(partition.leader_epoch, self.now_ms)
                reports.by_broker[broker.broker_id] = _LogInfo(
                    broker.epoch, info.last_written_leader_epoch, info.log_end_offset
                )
                named.append(key)
        return named

    def forget_settled(self, image: MetadataImage) -> None:
        """Drop the reports about partitions that no longer exist or have a new leader epoch."""
        for key, reports in list(self._reports.items()):
            topic: TopicImage | None = image.topics_by_id.get(key.topic_id)
            partition = None if topic is None else topic.partitions.get(key.partition)
            if partition is None or partition.leader_epoch != reports.leader_epoch:
                del self._reports[key]

    def reports_of(self, key: TopicIdPartition, leader_epoch: int) -> _Reports | None:
        """Return the reports about a partition in this leader epoch; None if there are none."""
        reports = self._reports.get(key)
        return reports if reports is not None and reports.leader_epoch == leader_epoch else None

    def may_live(self, broker_id: int) -> bool:
        """True if the broker may be alive: it has a valid session, or the controller has been active for less
        than one session timeout.
        """
        return self._sessions.may_live(broker_id, self.now_ms)

    def is_over(self, reports: _Reports) -> bool:
        """True if the election has waited long enough for missing reports (`unclean.recovery.timeout.ms`)."""
        return self.now_ms - reports.since_ms >= self._timeout_ms

    def statistics(self) -> dict[str, int]:
        return {"partitions": len(self._reports)}


class Recovery:
    """Unclean recovery with the brokers and controllers of one image."""

    def __init__(
        self,
        owner: UncleanRecovery,
        brokers: Mapping[int, BrokerImage],
        controllers: Mapping[int, ControllerImage],
    ) -> None:
        self._owner = owner
        self.brokers = brokers
        self.controllers = controllers
        self.is_known = bool(controllers) and all(
            names_feature(each.features) for each in controllers.values()
        )
        self._strangers = frozenset(
            broker_id for broker_id, broker in brokers.items() if not names_feature(broker.features)
        )

    def covers(self, replicas: Sequence[int]) -> bool:
        """True if the brokers of all these replicas support unclean recovery, and so can report their logs."""
        return self._strangers.isdisjoint(replicas)

    def elect(
        self,
        key: TopicIdPartition,
        partition: PartitionImage,
        last_known: Sequence[int],
        may_lead: Callable[[int], bool],
        *,
        at_once: bool = False,
        without_limit: frozenset[int] = frozenset(),
    ) -> int | None:
        """Choose the replica with the longest log. Returns None while the election must wait for other
        reports, unless `at_once` is set.

        For replicas in both `last_known` and `without_limit`, the election waits without a time limit.
        """
        reports = self._owner.reports_of(key, partition.leader_epoch)
        if reports is None:
            return None
        able = {
            broker_id: info
            for broker_id, info in reports.by_broker.items()
            if broker_id in self.brokers
            and self.brokers[broker_id].epoch == info.broker_epoch
            and may_lead(broker_id)
        }
        awaited = [
            each
            for each in partition.replicas
            if each in last_known or may_lead(each) or self._is_about_to_be_active(partition, each)
        ]
        held_back = any(each in without_limit and each not in able for each in last_known)
        if not able or not (
            at_once or (not held_back and self._has_heard(able, reports, last_known, awaited))
        ):
            reached("controller.reports_waited_for")
            return None
        order = [*last_known, *partition.replicas]

        def rank(broker_id: int) -> tuple[int, int, int]:
            info = able[broker_id]
            return info.last_written_leader_epoch, info.log_end_offset, -order.index(broker_id)

        return max(able, key=rank)

    def _is_about_to_be_active(self, partition: PartitionImage, broker_id: int) -> bool:
        """True if the broker is fenced but alive, so that it will soon be active.

        Its log matters, because it may have been in sync at the power failure. The broker that restarts first
        is also the first to leave the ISR.
        """
        broker = self.brokers.get(broker_id)
        return (
            broker is not None
            and broker.fenced
            and not broker.in_controlled_shutdown
            and partition.is_online(broker_id, broker)
            and self._owner.may_live(broker_id)
        )

    def _has_heard(
        self,
        able: Mapping[int, _LogInfo],
        reports: _Reports,
        last_known: Sequence[int],
        awaited: Sequence[int],
    ) -> bool:
        missing = [each for each in awaited if each in self.brokers and each not in able]
        return any(each in able for each in last_known) and (not missing or self._owner.is_over(reports))
