"""The registration of a controller: its endpoints and the feature levels that it supports (KIP-919)."""

from __future__ import annotations

from odradek.metadata_quorum.controller.brokers.registration_rules import check_contents
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from odradek.wire.messages.metadata_records import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)


def register_controller(
    image: MetadataImage,
    request: ControllerRegistrationRequest,
    context: DecisionContext,
    _basis: DecisionBasis,
) -> Decision:
    """Register a controller's addresses and supported feature levels.

    A repetition of the same registration writes no record.
    """
    try:
        check_contents(request.controller_id, request.incarnation_id, request.listeners, request.features)
    except KafkaError as error:
        return Decision([], ControllerRegistrationResponse(0, error.code, error.message))
    supported = {each.name: each for each in request.features}
    for name, level in sorted(image.features.items()):
        feature = supported.get(name)
        low, high = (
            (0, 0) if feature is None else (feature.min_supported_version, feature.max_supported_version)
        )
        if not low <= level <= high:
            message = (
                f"Unable to register because the controller does not support finalized version {level} of {name}. "
                f"The controller wants a version between {low} and {high}, inclusive."
            )
            return Decision([], ControllerRegistrationResponse(0, ErrorCode.UNSUPPORTED_VERSION, message))
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=[
            ControllerEndpoint(each.name, each.host, each.port, each.security_protocol)
            for each in request.listeners
        ],
        features=[
            ControllerFeature(each.name, each.min_supported_version, each.max_supported_version)
            for each in request.features
        ],
    )
    builder = ImageBuilder(image)
    builder.replay(context.next_offset, record)
    known = builder.build()[0].controllers[request.controller_id] == image.controllers.get(
        request.controller_id
    )
    return Decision([] if known else [record], ControllerRegistrationResponse(0, ErrorCode.NONE, None))
