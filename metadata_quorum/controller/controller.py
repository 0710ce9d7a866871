"""The controller as a state machine: which function decides which request, the first decision of a new
controller, and the periodic requests to itself. The runtime is in `state_machine.py`. Its state is a
`MetadataImage`.

`decide` looks up a pure function by the request's class. Each function is in the module of its subject
(`topics`, `brokers`, `producer_ids`). The function gets the image, and also a `DecisionBasis`: the
controller's settings and soft state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from odradek.metadata_quorum.controller import configs, features, producer_ids, topics
from odradek.metadata_quorum.controller.access import acls
from odradek.metadata_quorum.controller.access.client_quotas import alter_client_quotas
from odradek.metadata_quorum.controller.access.scram_users import alter_user_scram_credentials
from odradek.metadata_quorum.controller.access.tokens import (
    EXPIRED_PER_TURN_MAX,
    ExpireTokens,
    TokenRequest,
    decide_token_request,
    expire_tokens,
)
from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.brokers import broker_registration as brokers
from odradek.metadata_quorum.controller.brokers import directories
from odradek.metadata_quorum.controller.brokers.broker_registration import (
    FenceDeadBrokers,
    FenceExpiredBrokers,
)
from odradek.metadata_quorum.controller.brokers.controller_registration import register_controller
from odradek.metadata_quorum.controller.brokers.leaving_isrs import begin_waiting
from odradek.metadata_quorum.controller.brokers.unregistration import unregister_broker
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import ELECTIONS_PER_TURN_MAX, check_named
from odradek.metadata_quorum.controller.partitions import alter_partition, reassignment
from odradek.metadata_quorum.controller.partitions import create_partitions as partitions
from odradek.metadata_quorum.controller.partitions import elect_leaders as elections
from odradek.metadata_quorum.controller.partitions.elect_leaders import BalanceLeaders, ElectLeaderless
from odradek.metadata_quorum.controller.parts import LongRequest, Trial, long_request
from odradek.metadata_quorum.controller.refusals import refusal
from odradek.metadata_quorum.image.image_builder import ImageBuilder, Interned
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from odradek.wire.messages.alter_configs import AlterConfigsRequest
from odradek.wire.messages.alter_partition import AlterPartitionRequest
from odradek.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from odradek.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from odradek.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest
from odradek.wire.messages.controller_registration import ControllerRegistrationRequest
from odradek.wire.messages.create_acls import CreateAclsRequest
from odradek.wire.messages.create_partitions import CreatePartitionsRequest
from odradek.wire.messages.create_topics import CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.elect_leaders import ElectLeadersRequest
from odradek.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from odradek.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from odradek.wire.messages.update_features import UpdateFeaturesRequest
from odradek.wire.structure import Message

SESSION_CHECKS_PER_TIMEOUT = 18


@attrs.frozen
class Activate:
    """The request for a new leader's first decision.

    `bootstrap` has the first records of a cluster. They are written only if the log has no records yet. The
    response is the image's offset before the decision.
    """

    bootstrap: tuple[Message, ...]
    quiet: tuple[int, int] | None = None
    """The former leader, and when this node last heard it, in monotonic milliseconds; None if this node has heard no
    other leader.
    """


@attrs.frozen
class PeriodicTask:
    """A request that the active controller sends itself every `period_ms` milliseconds. If
    `has_more(response)` is true, the controller repeats it at once. The next request is sent only when the
    previous answer is committed.
    """

    name: str
    request_at: Callable[[int], Any]
    """A function that makes the request. Its argument is the earliest possible value of the present time, in
    milliseconds since 1970.
    """
    period_ms: int
    has_more: Callable[[Any], bool]


_Decide = Callable[[MetadataImage, Any, DecisionContext, DecisionBasis], Decision]


class Controller:
    """The controller, which decides all changes of the cluster.

    PURE: time and randomness are in the context of each decision.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.sessions = BrokerSessions(settings.broker_session_timeout_ms)
        self._interned = Interned()
        self._basis = DecisionBasis(settings, self.sessions)
        self._table: dict[type, _Decide] = {
            Activate: self._activate,
            Trial: self._try,
            **_OF_NODES,
            **_OF_CLIENTS,
            **_OF_TIMERS,
        }

    @property
    def requests(self) -> tuple[type, ...]:
        """The classes of the request messages that the controller can decide."""
        return tuple(cls for cls in self._table if issubclass(cls, Message))

    def decide(self, state: MetadataImage, request: Any, context: DecisionContext) -> Decision:
        """Decide a request. Returns records and response; only soft state changes."""
        self._basis.recovery.now_ms = context.now_ms
        if type(request) in _OF_CLIENTS:
            try:
                check_named(request)
            except KafkaError as error:
                return Decision([], refusal(request, error.code, error.message))
        return self._table[type(request)](state, request, context, self._basis)

    def long_request(self, state: MetadataImage, request: Any, weight_max: int) -> LongRequest | None:
        """Return the request as a `LongRequest` if it must be decided in parts; otherwise None. `weight_max`
        is the largest weight of a part.
        """
        return long_request(state, request, self.settings, weight_max)

    def replay(
        self, state: MetadataImage, base_offset: int, epoch: int, records: Sequence[Message]
    ) -> tuple[MetadataImage, MetadataDelta]:
        """Replay `records` to the next image. Raises `InvalidMetadata` if a record does not fit. This would
        be a bug, because this controller has decided the records.
        """
        builder = ImageBuilder(state, self._interned)
        for offset, record in enumerate(records, base_offset):
            builder.replay(offset, record, epoch)
        return builder.build()

    def refuse(self, request: Any, code: ErrorCode) -> Any:
        """Make a response that carries only an error."""
        return refusal(request, code)

    def withdraw(
        self, state: MetadataImage, request: Any, decision: Decision, context: DecisionContext
    ) -> Any:
        """Make the response to a request whose decision could not be written. It has one error for the whole
        request. Broker sessions are not reset, because the heartbeats did arrive.
        """
        return refusal(request, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _try(
        self, image: MetadataImage, trial: Trial, context: DecisionContext, _basis: DecisionBasis
    ) -> Decision:
        return Decision((), len(self.decide(image, trial.request, context).records))

    def _activate(
        self, image: MetadataImage, request: Activate, context: DecisionContext, basis: DecisionBasis
    ) -> Decision:
        basis.sessions.start(image, context.now_ms, request.quiet)
        begin_waiting(image, context.now_ms, basis)
        if image.features:
            return Decision((), image.offset)
        records = list(request.bootstrap)
        if features.enables_eligible_replicas(records):
            records += features.cluster_wide_min_isr(image, basis.settings)
        return Decision(records, image.offset)


def session_check_ms(settings: ControllerSettings) -> int:
    """Return the interval between two checks of sessions (`FenceExpiredBrokers`), in milliseconds."""
    return max(1, settings.broker_session_timeout_ms // SESSION_CHECKS_PER_TIMEOUT)


def periodic_tasks(settings: ControllerSettings) -> tuple[PeriodicTask, ...]:
    """List the requests that the active controller periodically sends to itself, except the check of
    sessions.
    """
    tasks = [
        PeriodicTask(
            "leaderless partitions",
            lambda _: ElectLeaderless(),
            settings.unclean_leader_election_interval_ms,
            _turn_was_full,
        ),
    ]
    if settings.auto_leader_rebalance_enable:
        period_ms = settings.leader_imbalance_check_interval_ms
        tasks.append(PeriodicTask("leader balance", lambda _: BalanceLeaders(), period_ms, _turn_was_full))
    if settings.token_secrets is not None:
        period_ms = settings.token_expiry_check_interval_ms
        tasks.append(PeriodicTask("expired tokens", ExpireTokens, period_ms, _turn_expired_many))
    return tuple(tasks)


def _turn_was_full(elected: int | None) -> bool:
    return elected is not None and elected >= ELECTIONS_PER_TURN_MAX


def _turn_expired_many(expired: int | None) -> bool:
    return expired is not None and expired >= EXPIRED_PER_TURN_MAX


_OF_NODES: Mapping[type, _Decide] = {
    BrokerRegistrationRequest: brokers.register_broker,
    BrokerHeartbeatRequest: brokers.heartbeat,
    AlterPartitionRequest: alter_partition.alter_partition,
    AssignReplicasToDirsRequest: directories.assign_replicas_to_dirs,
    AllocateProducerIdsRequest: producer_ids.allocate_producer_ids,
    ControllerRegistrationRequest: register_controller,
}
"""Requests that brokers and controllers send in their own name, with the functions that decide them."""

_OF_CLIENTS: Mapping[type, _Decide] = {
    CreateTopicsRequest: topics.create_topics,
    DeleteTopicsRequest: topics.delete_topics,
    CreatePartitionsRequest: partitions.create_partitions,
    IncrementalAlterConfigsRequest: configs.INCREMENTAL.decide,
    AlterConfigsRequest: configs.ABSOLUTE.decide,
    ElectLeadersRequest: elections.elect_leaders,
    AlterPartitionReassignmentsRequest: reassignment.alter_partition_reassignments,
    ListPartitionReassignmentsRequest: reassignment.list_partition_reassignments,
    UnregisterBrokerRequest: unregister_broker,
    UpdateFeaturesRequest: features.update_features,
    CreateAclsRequest: acls.create_acls,
    DeleteAclsRequest: acls.delete_acls,
    AlterUserScramCredentialsRequest: alter_user_scram_credentials,
    TokenRequest: decide_token_request,
    AlterClientQuotasRequest: alter_client_quotas,
}
"""Requests of clients, which brokers forward, with the functions that decide them."""

_OF_TIMERS: Mapping[type, _Decide] = {
    FenceExpiredBrokers: brokers.fence_expired,
    FenceDeadBrokers: brokers.fence_dead,
    BalanceLeaders: elections.balance_leaders,
    ElectLeaderless: elections.elect_leaderless,
    ExpireTokens: expire_tokens,
}
