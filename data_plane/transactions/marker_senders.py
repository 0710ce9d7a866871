"""Refuses requests for markers that come late, on a connection that their sender has replaced.

Below transaction version 2, all transactions of a producer have the same epoch. So a marker that arrives late is
taken for the end of the producer's next transaction. This can happen as follows. A coordinator loses its connection
and sends its request again on a new connection. The markers are written, and the next transaction begins. Then the
bytes of the first request arrive on the old connection. (KIP-890 closes this gap by a new epoch for each
transaction. Kafka has the gap with older clients.)

A coordinator has one connection to each broker for its markers. So once a request has come on a newer connection of
the same sender, no request on an older connection is handled any more. The gap remains in one case: the partition's
leader changes to another broker and back before the first request arrives. PURE.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from odradek.named_states import reached
from odradek.serving.contract import Context

SENDERS_MAX = 1_000
"""The most senders that are remembered. If there are more, the sender that was silent for longest is forgotten."""

_Sender: TypeAlias = tuple[object, str, str | None]
"""A sender of requests for markers: principal, address and client id."""


class MarkerSenders:
    """The time at which each sender's newest connection was opened."""

    def __init__(self) -> None:
        self._newest: OrderedDict[_Sender, float] = OrderedDict()

    def note(self, context: Context) -> None:
        """Remember the connection of a request, if it is its sender's newest."""
        sender = _sender(context)
        opened = context.opened_seconds
        self._newest[sender] = max(opened, self._newest.get(sender, opened))
        self._newest.move_to_end(sender)
        if len(self._newest) > SENDERS_MAX:
            self._newest.popitem(last=False)

    def has_replaced(self, context: Context) -> bool:
        """True if a request has come on a newer connection of the same sender."""
        if context.opened_seconds >= self._newest.get(_sender(context), context.opened_seconds):
            return False
        reached("transactions.markers_on_a_replaced_connection")
        return True


def _sender(context: Context) -> _Sender:
    return context.principal, context.client_address, context.client_id
