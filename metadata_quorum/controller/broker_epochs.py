"""Fencing of requests by broker epoch (KIP-841): a request is accepted only from the broker's current
registration.
"""

from __future__ import annotations

from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> None:
    """Check that `epoch` is that of the broker's current registration.

    Raises `KafkaError` STALE_BROKER_EPOCH.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}"
        )
    if broker.epoch != epoch:
        reached("controller.stale_broker_epoch_refused")
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}",
        )
