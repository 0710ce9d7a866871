"""A request to the coordinator of one transactional id, whose answer becomes a response."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from odradek.data_plane.coordination.asking import Asks
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.serving.contract import Delayed, Result
from odradek.wire.errors import ErrorCode
from odradek.wire.structure import Message

A = TypeVar("A")


class _Asked(Delayed):
    __slots__ = ()

    keeps_request = False


def ask_coordinator(
    transactions: TransactionCoordinator,
    transactional_id: str,
    request: Asks[A],
    convert: Callable[[A], Message],
) -> Result:
    """Have the coordinator decide. `convert` makes the response of what it answers."""
    delayed = _Asked()
    delayed.revise_by(convert)
    transactions.ask(transactional_id, request, delayed)
    return delayed if delayed.response is None else delayed.response


def fenced_code(code: ErrorCode, version: int, known_since: int) -> ErrorCode:
    """The error as clients of this version know it: they know PRODUCER_FENCED from `known_since` on (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
