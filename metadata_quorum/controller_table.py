"""The API table of a controller's listener and its handlers: requests to quorum and controller, envelopes,
DescribeCluster for controllers (KIP-919).

As in Kafka, this listener advertises its own set of APIs. If another node is the active controller, the
answer is NOT_CONTROLLER, and names the leader if the response has a field for it. Requests are never
forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.controller.doors import CONTROLLER_DOORS
from odradek.metadata_quorum.controller_channel import (
    LONG_BYTES,
    QUORUM_APIS,
    TOKEN_APIS,
    Service,
    answer_in_turns,
    answer_request,
    let_in,
    let_token_request_in,
    log_denials,
    takes_long,
)
from odradek.metadata_quorum.describing.describe_acls import DescribeAclsHandler
from odradek.metadata_quorum.describing.describe_configs import DescribeConfigsHandler
from odradek.metadata_quorum.describing.describe_scram_users import DescribeScramUsersHandler
from odradek.metadata_quorum.describing.describe_tokens import DescribeTokensHandler
from odradek.metadata_quorum.envelope import Enclosed, Sender, open_request, seal_response
from odradek.metadata_quorum.features import KRAFT_VERSION, SUPPORTED_FEATURES
from odradek.metadata_quorum.image.config_layers import layers_for
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.security.acls.authorizer import Authorizer
from odradek.security.doors.door import Admitted, GuardedHandler, check_doors
from odradek.security.tokens import TokenSecrets
from odradek.serving import sasl_requests
from odradek.serving.api_table import ApiTable
from odradek.serving.api_versions import ApiVersionsHandler
from odradek.serving.authorized_operations import (
    BROKERS_ENDPOINT,
    CLUSTER_OPERATIONS,
    CONTROLLERS_ENDPOINT,
    NOT_REQUESTED,
)
from odradek.serving.contract import Context, Delayed, Handler, Result, Suspend
from odradek.serving.long_work import LongWork, Share
from odradek.wire.api import api_versions, response_class
from odradek.wire.api_keys import APIS, ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from odradek.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from odradek.wire.schema.versions import DESCRIBE_CLUSTER_ENDPOINTS
from odradek.wire.structure import Message

__all__ = ["DescribedController", "build_controller_table"]


def build_controller_table(
    service: Service,
    image: Callable[[], MetadataImage],
    decided: Iterable[type[Message]],
    described: DescribedController | None = None,
    *,
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
    kraft_version: Callable[[], int] = lambda: 0,
    token_secrets: TokenSecrets | None = None,
) -> ApiTable:
    """Build the API table of a controller's listener.

    `decided` lists the requests that the controller decides. `image` returns the newest committed image.
    DescribeConfigs describes the configuration of `described`. `features` has the levels that the node
    supports, and `kraft_version` returns the quorum's level. `token_secrets` has the secrets of delegation
    tokens.
    """
    asks = AskHere(service).handle
    handlers: dict[int, Handler] = {int(key): asks for key in QUORUM_APIS}
    for request in decided:
        assert request.API_KEY is not None
        handlers[request.API_KEY] = asks
    handlers |= dict.fromkeys(map(int, TOKEN_APIS), AskForTokens(service).handle)
    handlers[ApiKey.DESCRIBE_CLUSTER] = DescribeControllersHandler(service, image).handle
    if described is not None:
        handlers[ApiKey.DESCRIBE_CONFIGS] = DescribeConfigsHandler(described.node_id, described).handle
    authorizer = None if service.doors is None else service.doors.authorizer
    acls = DescribeAclsHandler(authorizer, lambda: image().access.acls, service.env.long_work)
    handlers[ApiKey.DESCRIBE_ACLS] = acls.handle
    handlers[ApiKey.ENVELOPE] = EnvelopeHandler(service, frozenset(handlers)).handle
    handlers[ApiKey.SASL_HANDSHAKE] = sasl_requests.handshake
    handlers[ApiKey.SASL_AUTHENTICATE] = sasl_requests.authenticate
    handlers[ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS] = DescribeScramUsersHandler(
        image, service.env.long_work
    ).handle
    handlers[ApiKey.DESCRIBE_DELEGATION_TOKEN] = DescribeTokensHandler(
        image, service.env.long_work, token_secrets
    ).handle
    served = {int(key): api_versions(key) for key in sorted((*handlers, ApiKey.API_VERSIONS))}
    versions = ApiVersionsHandler(served, features, image, lambda: {KRAFT_VERSION: kraft_version()})
    handlers[ApiKey.API_VERSIONS] = versions.handle
    check_doors(handlers, CONTROLLER_DOORS, "metadata_quorum/controller/doors.py")
    if authorizer is not None:
        handlers = _guarded(handlers, authorizer, image, service.env.long_work)
    return ApiTable(handlers, served, served, versions.unsupported)


def _guarded(
    handlers: Mapping[int, Handler],
    authorizer: Authorizer,
    image: Callable[[], MetadataImage],
    long_work: LongWork,
) -> dict[int, Handler]:
    return {
        key: GuardedHandler(
            handle, CONTROLLER_DOORS[ApiKey(key)], authorizer, image, long_work=long_work, api_key=key
        ).handle
        for key, handle in handlers.items()
    }


@attrs.frozen
class DescribedController:
    """A controller's configuration, as DescribeConfigs shows it (KIP-919).

    `static` has the values of its properties file.
    """

    node_id: int
    static: BrokerConfigLayers
    log_levels: LogLevels
    long_work: LongWork
    newest_image: Callable[[], MetadataImage]

    @property
    def image(self) -> MetadataImage:
        return self.newest_image()

    @property
    def config_layers(self) -> BrokerConfigLayers:
        """The layers of configuration: the properties file, and the dynamic values for this node and for all
        nodes.
        """
        return layers_for(self.image, self.static.static, self.node_id)


class AskHere:
    """Handler of all requests that this node's quorum or controller answers.

    The handler sends an answer only after the state in the answer is committed.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def handle(self, context: Context, request: Message) -> Result:
        service, version = self._service, context.api_version
        if isinstance(request, BrokerHeartbeatRequest) and service.watch is not None:
            service.watch.heard(context, request)
        sender = Sender(context.principal, context.client_id or "", context.client_address)
        if takes_long(service, request):
            return Suspend(
                lambda: answer_in_turns(service, service.env.long_work.begin(), request, version, sender),
                is_long=True,
            )
        delayed = Delayed()
        answer_request(service, request, version, delayed.complete, sender)
        return delayed


class AskForTokens:
    """Handler of requests to change delegation tokens (KIP-48), from clients that are connected to this
    controller.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def handle(self, context: Context, request: Message) -> Result:
        service = self._service
        sender = Sender(context.principal, context.client_id or "", context.client_address)
        admitted = let_token_request_in(service, sender, request, may_ask=context.may_ask_for_tokens)
        if not isinstance(admitted, Admitted):
            refused: Message = admitted
            return refused
        delayed = Delayed()
        answer_request(service, admitted.request, context.api_version, delayed.complete, sender)
        return delayed


class EnvelopeHandler:
    """Handler of Envelope (API 58, KIP-590), in which a broker forwards a client's request.

    `enclosable` lists the APIs that may be in an envelope.
    """

    def __init__(self, service: Service, enclosable: frozenset[int]) -> None:
        self._service = service
        self._enclosable = frozenset(key for key in enclosable if APIS[key].forwarded_to_controller)

    def handle(self, context: Context, envelope: EnvelopeRequest) -> Result:
        if not self._service.is_active:
            return EnvelopeResponse(None, ErrorCode.NOT_CONTROLLER)
        if len(envelope.request_data) > LONG_BYTES:
            return Suspend(lambda: self._open_in_turns(envelope))
        enclosed = self._opened(envelope)
        if isinstance(enclosed, EnvelopeResponse):
            return enclosed
        service = self._service
        admitted = let_in(service, enclosed.sender, enclosed.request, enclosed.api_version)
        log_denials(service)
        if not isinstance(admitted, Admitted):
            return _sealed(enclosed, admitted)
        if takes_long(service, admitted.request):
            return Suspend(lambda: self._answer_in_turns(service.env.long_work.begin(), enclosed, admitted))
        delayed = Delayed()

        def respond(response: Any) -> None:
            delayed.complete(_sealed(enclosed, admitted.merge(response), _image_offset(service, enclosed)))

        answer_request(service, admitted.request, enclosed.api_version, respond, enclosed.sender)
        return delayed

    def _opened(self, envelope: EnvelopeRequest) -> Enclosed | EnvelopeResponse:
        """Open an envelope.

        Returns the client's request, or the error response if the envelope is refused.
        """
        try:
            enclosed = open_request(envelope)
        except KafkaError as error:
            return EnvelopeResponse(None, error.code)
        if enclosed.api_key not in self._enclosable:
            return EnvelopeResponse(None, ErrorCode.INVALID_REQUEST)
        return enclosed

    async def _open_in_turns(self, envelope: EnvelopeRequest) -> EnvelopeResponse:
        share = self._service.env.long_work.begin()
        enclosed = await share.in_worker(self._opened, envelope)
        if isinstance(enclosed, EnvelopeResponse):
            return enclosed
        admitted = await share.in_worker(
            let_in, self._service, enclosed.sender, enclosed.request, enclosed.api_version
        )
        log_denials(self._service)
        if not isinstance(admitted, Admitted):
            return await share.in_worker(_sealed, enclosed, admitted)
        return await self._answer_in_turns(share, enclosed, admitted)

    async def _answer_in_turns(
        self, share: Share, enclosed: Enclosed, admitted: Admitted
    ) -> EnvelopeResponse:
        response = await answer_in_turns(
            self._service, share, admitted.request, enclosed.api_version, enclosed.sender
        )
        offset = _image_offset(self._service, enclosed)
        return await share.in_worker(_sealed, enclosed, admitted.merge(response), offset)


def _image_offset(service: Service, enclosed: Enclosed) -> int:
    """Return the offset of the committed image that the answer to this request shows. The image is published
    before the answer is released.

    Returns -1 for requests to the quorum and for ListPartitionReassignments, because the client need not wait
    for the broker's image after these requests.
    """
    if enclosed.api_key in QUORUM_APIS or enclosed.api_key == ApiKey.LIST_PARTITION_REASSIGNMENTS:
        return -1
    return service.committed_image.offset


def _sealed(enclosed: Enclosed, response: Any, image_offset: int = -1) -> EnvelopeResponse:
    if isinstance(response, response_class(enclosed.api_key)):
        return seal_response(enclosed, response, image_offset)
    return EnvelopeResponse(None, ErrorCode.UNKNOWN_SERVER_ERROR)


def _wrong_endpoint(version: int, mismatched: bool) -> ErrorCode:
    """Return the error for a DescribeCluster request that does not ask for controllers' endpoints.

    A request of version 0 cannot ask for them, so it is always an error here.
    """
    if version < DESCRIBE_CLUSTER_ENDPOINTS:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.MISMATCHED_ENDPOINT_TYPE if mismatched else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


class DescribeControllersHandler:
    """Handler of DescribeCluster (API 60) for controllers (KIP-919): it lists the registered controllers, and
    names the leader.
    """

    def __init__(self, service: Service, image: Callable[[], MetadataImage]) -> None:
        self._service = service
        self._image = image

    def handle(self, context: Context, request: DescribeClusterRequest) -> Result:
        if request.endpoint_type != CONTROLLERS_ENDPOINT:
            mismatched = request.endpoint_type == BROKERS_ENDPOINT
            return DescribeClusterResponse(
                0,
                _wrong_endpoint(context.api_version, mismatched),
                "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
                if mismatched
                else f"Unsupported endpoint type {request.endpoint_type}",
                CONTROLLERS_ENDPOINT,
            )
        image = self._image()
        controllers = [
            DescribeClusterBroker(node_id, endpoint.host, endpoint.port)
            for node_id, controller in sorted(image.controllers.items())
            for endpoint in controller.listeners
            if endpoint.name == context.listener
        ]
        leader_id = self._service.quorum.leader_id
        operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        return DescribeClusterResponse(
            0,
            ErrorCode.NONE,
            None,
            CONTROLLERS_ENDPOINT,
            image.cluster_id,
            -1 if leader_id is None else leader_id,
            controllers,
            operations,
        )
