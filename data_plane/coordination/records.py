"""The records that coordinators write: keys with values or tombstones, and the markers that end transactions.
PURE.

The records have the frames of `odradek.wire.metadata_frames`. A record without a value is a tombstone.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.log.parts.verification import VerificationGuard
from odradek.wire.metadata_frames import encode_coordinator_key, encode_coordinator_value
from odradek.wire.structure import Message


@attrs.frozen(eq=False)
class RecordProducer:
    """The transactional producer for which a coordinator appends records."""

    producer_id: int
    epoch: int
    guard: VerificationGuard
    """The log's permission to append for this transaction. It shows that the transaction's coordinator has
    confirmed the partition as a part of the transaction.
    """


@attrs.frozen
class CoordinatorRecord:
    """One record of a coordinator: a key, and a value with the version in which it is encoded.

    A value of None is a tombstone.
    """

    key: Message
    value: Message | None
    value_version: int = 0
    producer: RecordProducer | None = None
    """The transactional producer; None for a record outside of transactions."""

    def encoded_key(self) -> bytes:
        return encode_coordinator_key(self.key)

    def encoded_value(self) -> bytes | None:
        if self.value is None:
            return None
        return encode_coordinator_value(self.value, self.value_version)


@attrs.frozen
class TransactionEnd:
    """The marker (commit or abort) that ends a producer's transaction on the coordinator's partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
