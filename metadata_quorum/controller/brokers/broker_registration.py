"""Registration, heartbeats, fencing and controlled shutdown of brokers; directories that they report as failed
or cordoned; elections when they return.

A broker registers, and is fenced at first. It reads the metadata log, and asks with its heartbeats to be
unfenced. It is fenced again when its session expires, when it shuts down, or when it asks to be fenced. Its
epoch is the offset of its registration record.

**Controlled shutdown.** The controller moves the broker's leaderships to other brokers, and removes it from
ISRs. The broker may stop when all active brokers have read the metadata with the new leaders.

**Unclean restarts.** A broker that registers also sends the epoch under which it last shut down cleanly. If
its last registration has another epoch, the broker did not stop cleanly and may have lost acknowledged
records. (Such records may not be synced yet.) So it leaves every ISR before it can be unfenced.

**A directory that is back.** A broker may register again, with the same incarnation, to add a directory that
it had reported as offline. The broker keeps its epoch and is not fenced. If a partition with a replica in
this directory has no leader, it gets one at once. (In Kafka it waits for the next election.)

**A difference from Kafka.** In Kafka a new incarnation waits until the session of the old one has expired (9
s). In Odradek a new incarnation is accepted at once if it has one of the old incarnation's log directories.
(A process holds the locks of its directories until it ends, so the old process has ended.) Other new
incarnations get DUPLICATE_BROKER_REGISTRATION, as in Kafka.
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.brokers.leaving_isrs import (
    AT_ONCE,
    go_on_leaving,
    leave_isrs,
    sorted_topics,
)
from odradek.metadata_quorum.controller.brokers.registration_rules import check_contents
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Change,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import topic_rules
from odradek.metadata_quorum.features import METADATA_VERSION
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    RESERVED_DIRECTORIES,
    BrokerImage,
    MetadataImage,
    TopicImage,
)
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from odradek.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
)
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicIdPartition

FENCE = 1
UNFENCE = -1
IN_CONTROLLED_SHUTDOWN = 1


@attrs.frozen
class FenceExpiredBrokers:
    """A request of the controller to itself: fence the brokers whose sessions have expired.

    The response is the list of their ids.
    """

    slept_ms: int = 0
    """The number of milliseconds by which the timer was late. This process was paused for that time, and could not
    receive heartbeats.
    """


@attrs.frozen
class FenceDeadBroker:
    """A request of the controller to itself: fence a broker whose process has ended (`ProcessWatch`).

    The response is a list with the broker's id if this request has fenced the broker; otherwise an empty list.
    """

    broker_id: int
    broker_epoch: int
    since_ms: int
    """The monotonic time, in milliseconds, at which the suspicion began."""


def register_broker(
    image: MetadataImage, request: BrokerRegistrationRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Register a broker. It is fenced until a heartbeat unfences it. Its epoch is the offset of the
    registration record.

    If the same incarnation registers again, it amends its registration and keeps its epoch. A new incarnation
    first loses all leaderships. After a clean stop it stays in ISRs until the other members have sent
    heartbeats. If it cannot prove a clean stop, it leaves all ISRs and all sets of eligible replicas
    (KIP-966). The response has the broker's epoch, or an error.
    """
    sessions = basis.sessions
    try:
        existing = _check_registration(image, request, context, sessions)
    except KafkaError as error:
        return Decision([], BrokerRegistrationResponse(0, error.code, -1))
    amended = existing is not None and existing.incarnation_id == request.incarnation_id
    records: list[Message] = []
    if not amended:
        # A broker that is not registered cannot prove that it stopped cleanly. It may still be in an ELR, so
        # `leave_isrs` is called for it, too.
        clean = existing is not None and existing.epoch == request.previous_broker_epoch
        if existing is not None and not clean:
            reached("controller.broker_came_back_uncleanly")
        leaving = {request.broker_id: context.now_ms if clean else AT_ONCE}
        records += leave_isrs(image, leaving, basis, unclean=not clean, log_dirs=request.log_dirs)
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=existing.epoch
        if existing is not None and amended
        else context.next_offset + len(records),
        end_points=[BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners],
        features=[
            BrokerFeature(f.name, f.min_supported_version, f.max_supported_version) for f in request.features
        ],
        rack=request.rack,
        fenced=existing.fenced if existing is not None and amended else True,
        in_controlled_shutdown=existing.in_controlled_shutdown if existing is not None and amended else False,
        log_dirs=sorted(request.log_dirs),
    )
    records.append(record)
    if not amended:
        sessions.begin(request.broker_id, context.now_ms)
    elif existing is not None and existing.is_active and not set(request.log_dirs) <= set(existing.log_dirs):
        records += _elect_where_nobody_leads(_after(image, records, context), basis)
    return Decision(records, BrokerRegistrationResponse(0, ErrorCode.NONE, record.broker_epoch))


def _check_registration(
    image: MetadataImage,
    request: BrokerRegistrationRequest,
    context: DecisionContext,
    sessions: BrokerSessions,
) -> BrokerImage | None:
    """Check a registration request. Returns the existing registration that the request replaces or amends;
    None if the broker is new. Raises `KafkaError`.
    """
    if request.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    check_contents(
        request.broker_id,
        request.incarnation_id,
        request.listeners,
        request.features,
        rack=request.rack,
        log_dirs=len(request.log_dirs),
    )
    existing = image.brokers.get(request.broker_id)
    if existing is not None and existing.incarnation_id != request.incarnation_id:
        alive = sessions.is_valid(existing.broker_id, context.now_ms) and not existing.in_controlled_shutdown
        holds_locks = not set(existing.log_dirs).isdisjoint(request.log_dirs)
        if alive and not holds_locks:
            reached("controller.living_double_refused")
            raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    if request.is_migrating_zk_broker:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers."
        )
    _check_directories(image, request)
    _check_features(image, request)
    return existing


def _check_directories(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    if not request.log_dirs:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
    if len(set(request.log_dirs)) != len(request.log_dirs):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    if any(directory in RESERVED_DIRECTORIES for directory in request.log_dirs):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    for broker in image.brokers.values():
        if broker.broker_id != request.broker_id and set(broker.log_dirs) & set(request.log_dirs):
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION,
                f"Broker {broker.broker_id} is already registered with one of the directories",
            )


def _check_features(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    supported = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    if METADATA_VERSION not in supported:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION, f"the registration does not name the feature {METADATA_VERSION}"
        )
    for name, level in image.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {low} and {high}, inclusive.",
            )


def heartbeat(
    image: MetadataImage, request: BrokerHeartbeatRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Renew a broker's session. Then unfence the broker, fence it or shut it down, as it requests.

    First, replicas in directories that the broker reports as offline leave their ISRs. The broker is unfenced
    once it has read its own registration. If it wants to shut down, its leaderships are moved. It may stop
    when every active broker has read the metadata with the new leaders.

    The response says whether the broker has caught up, whether it is fenced, and whether it may stop.
    """
    sessions = basis.sessions
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        reached("controller.heartbeat_of_earlier_life_refused")
        return Decision([], BrokerHeartbeatResponse(0, ErrorCode.STALE_BROKER_EPOCH))
    sessions.touch(broker.broker_id, context.now_ms, request.current_metadata_offset)
    caught_up = request.current_metadata_offset >= broker.epoch
    records = _directories_offline(image, broker, request.offline_log_dirs, basis)
    records += _directories_cordoned(broker, request.cordoned_log_dirs)
    if records:
        # A directory has just failed. The records below must not elect a replica in it.
        reached("controller.directory_lost")
        image = _after(image, records, context)
        broker = image.brokers[broker.broker_id]
    reported = basis.recovery.note(image, broker, request.topic_partition_log_info_list)
    shut_down = False
    fenced, stopping = broker.fenced, broker.in_controlled_shutdown
    # A registration record must name a directory. So if all directories have failed, the registration
    # stays, and the broker is fenced.
    want_fence = request.want_fence or set(broker.log_dirs) <= set(request.offline_log_dirs)
    if broker.fenced:
        # This broker was already allowed to stop, so only a new registration can bring it back.
        if request.want_shut_down or stopping:
            reached("controller.fenced_broker_may_stop")
            shut_down = True
        elif not want_fence and caught_up:
            fenced = False
            records += unfence(image, broker, basis)
    elif want_fence:
        fenced, shut_down = True, request.want_shut_down
        records += fence(image, [broker], context.now_ms, basis)
    elif request.want_shut_down or stopping:
        leads = _leads_anything(image, broker.broker_id)
        if not stopping and leads:
            records += _begin_controlled_shutdown(image, broker, context.now_ms, basis)
        elif not leads and (not stopping or sessions.others_know(image, broker.broker_id)):
            fenced, shut_down = True, True
            records += fence(image, [broker], context.now_ms, basis, is_stopping=not stopping)
        sessions.leaderships_moved(broker.broker_id, context.next_offset + len(records) - 1)
    elif reported:
        records += _elect_reported(image, reported, basis)
    if shut_down:
        sessions.remove(broker.broker_id)
    return Decision(records, BrokerHeartbeatResponse(0, ErrorCode.NONE, caught_up, fenced, shut_down))


def _after(image: MetadataImage, records: list[Message], context: DecisionContext) -> MetadataImage:
    builder = ImageBuilder(image)
    for offset, record in enumerate(records, context.next_offset):
        builder.replay(offset, record, context.epoch)
    return builder.build()[0]


def fence(
    image: MetadataImage,
    brokers: list[BrokerImage],
    now_ms: int,
    basis: DecisionBasis,
    *,
    is_stopping: bool = False,
) -> list[Message]:
    """Make the records that fence brokers. The brokers lose their leaderships, and leave every ISR whose
    other members are alive.

    `is_stopping` is set if a broker stops without a controlled shutdown. The record then marks the broker as
    stopping, so that readers of the log see this. (Kafka's record says only that the broker is fenced.)
    """
    since_ms = basis.sessions.recently(now_ms)
    records = leave_isrs(image, {broker.broker_id: since_ms for broker in brokers}, basis)
    records += [
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            fenced=FENCE,
            in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN if is_stopping else 0,
        )
        for broker in brokers
    ]
    return records


def unfence(image: MetadataImage, broker: BrokerImage, basis: DecisionBasis) -> list[Message]:
    """Make the records that unfence a broker.

    The broker may lead again, so some partitions without a leader may get one.
    """
    return [
        BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE),
        *_elect_where_nobody_leads(image, basis, also=broker.broker_id),
    ]


def _elect_where_nobody_leads(
    image: MetadataImage, basis: DecisionBasis, *, also: int | None = None
) -> list[Message]:
    records: list[Message] = []
    acceptable = acceptable_leaders(image, also=also)
    for topic in sorted_topics(image):
        rules = None
        for number, partition in topic.partitions.items():
            if partition.leader == NO_LEADER:
                rules = rules or topic_rules(image, basis, topic)
                change = change_partition(topic.topic_id, number, partition, acceptable, rules)
                if change is not None:
                    records.append(change)
    return records


def _elect_reported(
    image: MetadataImage, reported: list[TopicIdPartition], basis: DecisionBasis
) -> list[Message]:
    """Elect leaders for partitions for which a broker has just reported its log. A partition that needs
    further reports gets no leader yet.
    """
    records: list[Message] = []
    acceptable = acceptable_leaders(image)
    for topic_id, number in dict.fromkeys(reported):
        topic: TopicImage = image.topics_by_id[topic_id]
        rules = topic_rules(image, basis, topic)
        change = change_partition(topic_id, number, topic.partitions[number], acceptable, rules)
        if change is not None:
            records.append(change)
    return records


def _begin_controlled_shutdown(
    image: MetadataImage, broker: BrokerImage, now_ms: int, basis: DecisionBasis
) -> list[Message]:
    records: list[Message] = [
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN,
        )
    ]
    return records + leave_isrs(image, {broker.broker_id: basis.sessions.recently(now_ms)}, basis)


def fence_expired(
    image: MetadataImage, request: FenceExpiredBrokers, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Fence all brokers whose sessions have expired, in one decision. The timer repeats the request until no
    session has expired.

    All these brokers leave each ISR in one change. So each of them has all records that were committed before
    the change.

    If no session has expired, the decision removes waiting brokers from ISRs instead (`go_on_leaving`).
    """
    sessions = basis.sessions
    sessions.prolong(request.slept_ms, context.now_ms)
    expired = sessions.expired(image, context.now_ms)
    if not expired:
        return Decision(go_on_leaving(image, basis), [])
    reached("controller.session_expired")
    records = fence(image, [image.brokers[broker_id] for broker_id in expired], context.now_ms, basis)
    for broker_id in expired:
        sessions.remove(broker_id)
    return Decision(records, expired)


def fence_dead(
    image: MetadataImage, request: FenceDeadBroker, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Fence a broker whose process has ended. Do nothing if the broker is fenced, has registered again, or has sent
    a heartbeat since the suspicion began.
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.fenced or broker.epoch != request.broker_epoch:
        reached("controller.death_of_earlier_life_dropped")
        return Decision([], [])
    if basis.sessions.heard_since(broker.broker_id, request.since_ms):
        reached("controller.suspect_is_alive")
        return Decision([], [])
    records = fence(image, [broker], context.now_ms, basis)
    basis.sessions.remove(broker.broker_id)
    return Decision(records, [broker.broker_id])


def _leads_anything(image: MetadataImage, broker_id: int) -> bool:
    return any(
        partition.leader == broker_id
        for topic in image.topics.values()
        for partition in topic.partitions.values()
    )


def _directories_offline(
    image: MetadataImage, broker: BrokerImage, offline: list[bytes], basis: DecisionBasis
) -> list[Message]:
    """Make the records that remove failed directories from a broker's registration, and the replicas in these
    directories from their ISRs.
    """
    newly_offline = [directory for directory in broker.log_dirs if directory in offline]
    remaining = [directory for directory in broker.log_dirs if directory not in offline]
    if not newly_offline or not remaining:
        return []
    acceptable = acceptable_leaders(image, without=(broker.broker_id,))
    records: list[Message] = []
    for topic in sorted_topics(image):
        for number, partition in topic.partitions.items():
            if broker.broker_id not in partition.isr:
                continue
            if partition.directory_of(broker.broker_id) in newly_offline:
                change = change_partition(
                    topic.topic_id,
                    number,
                    partition,
                    acceptable,
                    topic_rules(image, basis, topic),
                    Change(removed=(broker.broker_id,)),
                )
                if change is not None:
                    records.append(change)
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, log_dirs=remaining
        )
    )
    return records


def _directories_cordoned(broker: BrokerImage, cordoned: list[bytes] | None) -> list[Message]:
    """Make the record with the directories that get no new replicas (KIP-1066).

    Brokers of older releases do not report this. Then `cordoned` is None, and nothing changes.
    """
    if cordoned is None or tuple(cordoned) == broker.cordoned_log_dirs:
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]
