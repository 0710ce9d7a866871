"""Producer ids: brokers get them in blocks, and no id is ever allocated twice (KIP-730)."""

from __future__ import annotations

from odradek.metadata_quorum.controller.broker_epochs import check_broker_epoch
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from odradek.wire.messages.metadata_records import ProducerIdsRecord

PRODUCER_ID_BLOCK_SIZE = 1000
PRODUCER_ID_MAX = (1 << 63) - 1


def allocate_producer_ids(
    image: MetadataImage,
    request: AllocateProducerIdsRequest,
    _context: DecisionContext,
    _basis: DecisionBasis,
) -> Decision:
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
        start = image.next_producer_id
        if start > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producer ids")
    except KafkaError as error:
        return Decision([], AllocateProducerIdsResponse(0, error.code, 0, 0))
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, start + PRODUCER_ID_BLOCK_SIZE)
    return Decision([record], AllocateProducerIdsResponse(0, ErrorCode.NONE, start, PRODUCER_ID_BLOCK_SIZE))
