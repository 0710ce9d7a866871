"""Coordinator records: a key, and a value or a tombstone; and the end of a transaction among them. PURE.

Their frames are those of `odradek.wire.metadata_frames`. A record without a value is a tombstone.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.log.parts.verification import VerificationGuard
from odradek.wire.metadata_frames import encode_coordinator_key, encode_coordinator_value
from odradek.wire.structure import Message


@attrs.frozen(eq=False)
class RecordProducer:
    """The transactional producer in whose name a coordinator appends."""

    producer_id: int
    epoch: int
    guard: VerificationGuard
    """The verification of the transaction: its coordinator's answer."""


@attrs.frozen
class CoordinatorRecord:
    """One record: a key, and a value at the version in which it is written; None is a tombstone."""

    key: Message
    value: Message | None
    value_version: int = 0
    producer: RecordProducer | None = None
    """The producer; None outside of transactions."""

    def encoded_key(self) -> bytes:
        return encode_coordinator_key(self.key)

    def encoded_value(self) -> bytes | None:
        if self.value is None:
            return None
        return encode_coordinator_value(self.value, self.value_version)


@attrs.frozen
class TransactionEnd:
    """The marker that ends a producer's transaction on the coordinator's partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
