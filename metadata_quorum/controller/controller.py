"""The controller as a machine of the replicated-state-machine runtime: its state is a `MetadataImage`.

`decide` is a table from request class to a pure function; each function lives with its subject (`topics`,
`brokers`, `producer_ids`). Besides the image it may look at `BrokerSessions`, the controller's only soft state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from metadata_quorum.controller import (
    alter_partition,
    brokers,
    configs,
    directories,
    features,
    partitions,
    producer_ids,
    topics,
)
from metadata_quorum.controller.brokers import FenceExpiredBrokers
from metadata_quorum.controller.sessions import BrokerSessions
from metadata_quorum.controller.settings import ControllerSettings
from metadata_quorum.image import MetadataDelta, MetadataImage
from metadata_quorum.image_builder import ImageBuilder, Interned
from metadata_quorum.state_machine import Decision, DecisionContext
from wire.errors import ErrorCode
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wire.messages.alter_configs import AlterConfigsRequest
from wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from wire.messages.create_partitions import CreatePartitionsRequest
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from wire.structure import Message


@attrs.frozen
class Activate:
    """The first decision of a new leader. `bootstrap` are the records of a new cluster, used if the log has none.

    Its response is the image's offset before the decision.
    """

    bootstrap: tuple[Message, ...]


_Decide = Callable[[MetadataImage, Any, DecisionContext], Decision]


class Controller:
    """Decides what the cluster is. PURE: time and randomness come in with the context."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.sessions = BrokerSessions(settings.broker_session_timeout_ms)
        self._interned = Interned()
        sessions = self.sessions
        self._table: dict[type, _Decide] = {
            Activate: self._activate,
            FenceExpiredBrokers: lambda image, _, context: brokers.fence_expired(
                image, context, sessions, settings
            ),
            BrokerRegistrationRequest: lambda image, request, context: brokers.register_broker(
                image, request, context, sessions, settings
            ),
            BrokerHeartbeatRequest: lambda image, request, context: brokers.heartbeat(
                image, request, context, sessions, settings
            ),
            CreateTopicsRequest: lambda image, request, context: topics.create_topics(
                image, request, context, settings
            ),
            DeleteTopicsRequest: lambda image, request, context: topics.delete_topics(
                image, request, context, settings
            ),
            CreatePartitionsRequest: partitions.create_partitions,
            IncrementalAlterConfigsRequest: lambda image, request, _: configs.incremental_alter_configs(
                image, request, settings
            ),
            AlterConfigsRequest: lambda image, request, _: configs.alter_configs(image, request, settings),
            AssignReplicasToDirsRequest: lambda image, request, _: directories.assign_replicas_to_dirs(
                image, request, settings
            ),
            AlterPartitionRequest: lambda image, request, context: alter_partition.alter_partition(
                image, request, context, settings
            ),
            AllocateProducerIdsRequest: lambda image, request, _: producer_ids.allocate_producer_ids(
                image, request
            ),
        }

    @property
    def requests(self) -> tuple[type, ...]:
        """The request messages that can be decided."""
        return tuple(cls for cls in self._table if issubclass(cls, Message))

    def decide(self, state: MetadataImage, request: Any, context: DecisionContext) -> Decision:
        """Records and response. Changes nothing but soft state."""
        return self._table[type(request)](state, request, context)

    def replay(
        self, state: MetadataImage, base_offset: int, epoch: int, records: Sequence[Message]
    ) -> tuple[MetadataImage, MetadataDelta]:
        """The image after `records`. Raises `InvalidMetadata`, which is a bug: this controller decided them."""
        builder = ImageBuilder(state, self._interned)
        for offset, record in enumerate(records, base_offset):
            builder.replay(offset, record, epoch)
        return builder.build()

    def refuse(self, request: Any, code: ErrorCode) -> Any:
        """A response that carries only an error."""
        if isinstance(request, CreateTopicsRequest):
            return topics.refuse_create_topics(request, code, code.message)
        if isinstance(request, DeleteTopicsRequest):
            return topics.refuse_delete_topics(request, code, code.message)
        if isinstance(request, CreatePartitionsRequest):
            return partitions.refuse_create_partitions(request, code, code.message)
        if isinstance(request, IncrementalAlterConfigsRequest):
            return configs.refuse_incremental(request, code, code.message)
        if isinstance(request, AlterConfigsRequest):
            return configs.refuse_absolute(request, code, code.message)
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(0, code, -1)
        if isinstance(request, BrokerHeartbeatRequest):
            return BrokerHeartbeatResponse(0, code)
        if isinstance(request, AlterPartitionRequest):
            return AlterPartitionResponse(0, code, [])
        if isinstance(request, AssignReplicasToDirsRequest):
            return AssignReplicasToDirsResponse(0, code, [])
        if isinstance(request, AllocateProducerIdsRequest):
            return AllocateProducerIdsResponse(0, code, 0, 0)
        return None

    def _activate(self, image: MetadataImage, request: Activate, context: DecisionContext) -> Decision:
        self.sessions.start(image, context.now_ms)
        if image.features:
            return Decision((), image.offset)
        records = list(request.bootstrap)
        if features.enables_eligible_replicas(records):
            records += features.cluster_wide_min_isr(image, self.settings)
        return Decision(records, image.offset)
