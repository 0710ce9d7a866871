"""The registration of a controller in the cluster: its endpoints and feature levels (KIP-919). PORTED.

Every start registers again, as in Kafka, because each start is a new incarnation. Only brokers are fenced, so
a controller sends no heartbeats. The quorum decides whether the controller votes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.env.ports import ConnectionLost, Env, Log
from odradek.metadata_quorum.ports import PeerChannel
from odradek.node.broker_lifecycle import RegistrationRefused
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.controller_registration import ControllerRegistrationRequest, Feature, Listener

__all__ = ["register_controller"]

ATTEMPT_SECONDS = 30.0
RETRY_SECONDS = 1.0


async def register_controller(
    env: Env,
    channel: PeerChannel,
    node_id: int,
    endpoints: Sequence[tuple[str, str, int]],
    features: Mapping[str, tuple[int, int]],
    log: Log,
) -> None:
    """Register this controller; repeat the request until the active controller accepts it. `endpoints` are
    (listener, host, port), `features` are the feature levels that it supports.

    Raises `RegistrationRefused` when this version lacks the cluster's feature levels, or the controller refuses the
    request.
    """
    request = ControllerRegistrationRequest(
        controller_id=node_id,
        incarnation_id=env.new_uuid(),
        listeners=[Listener(name, host, port, 0) for name, host, port in endpoints],
        features=[Feature(name, low, high) for name, (low, high) in sorted(features.items())],
    )
    clock = env.clock
    while True:
        try:
            response = await channel.request(request, clock.monotonic() + ATTEMPT_SECONDS)
            code = ErrorCode(response.error_code)
        except (KafkaError, ConnectionLost) as error:
            log.warning("controller.registration_failed", error=str(error))
        else:
            if code is ErrorCode.NONE:
                log.info("controller.registered")
                return
            if code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REGISTRATION):
                raise RegistrationRefused(
                    f"the active controller refuses to register this controller: {response.error_message}"
                )
            log.warning("controller.registration_failed", error=code.name)
        await clock.sleep_until(clock.monotonic() + RETRY_SECONDS)
