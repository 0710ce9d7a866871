"""UnregisterBroker: the permanent removal of a broker from the cluster."""

from __future__ import annotations

from odradek.metadata_quorum.controller.brokers.leaving_isrs import AT_ONCE, leave_isrs
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.metadata_records import UnregisterBrokerRecord
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from odradek.wire.structure import Message


def unregister_broker(
    image: MetadataImage, request: UnregisterBrokerRequest, _context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Remove a broker's registration. The broker loses its leaderships and leaves ISRs. Assignments of
    replicas keep its id until they are changed.

    Stop the broker first: a running broker registers again when its next heartbeat is refused.
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Decision(
            [],
            UnregisterBrokerResponse(
                0,
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"Broker ID {request.broker_id} is not currently registered",
            ),
        )
    records: list[Message] = leave_isrs(image, {broker.broker_id: AT_ONCE}, basis)
    records.append(UnregisterBrokerRecord(broker.broker_id, broker.epoch))
    basis.sessions.remove(broker.broker_id)
    return Decision(records, UnregisterBrokerResponse(0, ErrorCode.NONE, ""))
