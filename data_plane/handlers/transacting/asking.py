"""A request to the coordinator of one transactional id, whose answer becomes a response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.data_plane.broker import Broker
from odradek.data_plane.coordination.asking import Ask
from odradek.serving.contract import Delayed, Result
from odradek.wire.errors import ErrorCode
from odradek.wire.structure import Message

FENCED_SINCE_OF_PARTITIONS = 2
"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn know PRODUCER_FENCED from this version on."""


class _Asked(Delayed):
    __slots__ = ()

    keeps_request = False


def ask_coordinator(
    broker: Broker, transactional_id: str, request: Any, convert: Callable[[Any], Message]
) -> Result:
    """Have the coordinator decide. `convert` makes the response of what it answers."""
    delayed = _Asked()
    delayed.revise_by(convert)
    broker.transactions.submit(transactional_id, Ask(request, 0, delayed, broker.clock.wall_ms()))
    return delayed if delayed.response is None else delayed.response


def fenced_code(code: ErrorCode, version: int, known_since: int = FENCED_SINCE_OF_PARTITIONS) -> ErrorCode:
    """The error as clients of this version know it: PRODUCER_FENCED came later (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
