"""Quotas at a listener: which connections are charged and which are exempt (nodes), and the throttle time of
each answer. PORTED.

`data_plane/quotas` has the accounts. This module decides which connections are charged: it charges clients,
and exempts nodes. A node is known by its listener (the brokers' own), by a principal with CLUSTER_ACTION, or
by a request that only nodes send. Neither a replica id nor a client id alone makes a client a node.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from odradek.data_plane.quotas.client_quotas import ClientQuotas, ClientShare
from odradek.metadata_quorum.quotas.quota_levels import CONTROLLER_MUTATION_RATE
from odradek.metadata_quorum.quotas.token_bucket import wait_ms
from odradek.serving.contract import Context
from odradek.wire.api_keys import ApiKey

__all__ = ["CHANGING", "CHARGED_ANSWERS", "Charging", "throttled"]

_PRODUCE, _FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
_OF_NODES = frozenset((int(ApiKey.WRITE_TXN_MARKERS),))
"""The APIs whose requests are never charged, as in Kafka. In clusters with an authorizer, these APIs need the
right CLUSTER_ACTION.
"""
CHANGING = frozenset((int(ApiKey.CREATE_TOPICS), int(ApiKey.DELETE_TOPICS), int(ApiKey.CREATE_PARTITIONS)))
"""The APIs with which the controller may make a client wait, by a throttle time in its answer."""
CHARGED_ANSWERS = CHANGING | {_FETCH}
"""The APIs whose answers are charged when they are encoded."""
_MS_PER_SECOND = 1000
_OF_A_NODE = ClientShare.exempt("", None, -1)
"""Stands for "no accounts" in the context of a request that only nodes send. Later requests on the same connection are
checked again.
"""


class Charging:
    """Charges the clients of one listener. Connections call it only while some quota exists."""

    def __init__(
        self,
        quotas: ClientQuotas,
        *,
        is_of_nodes: bool,
        is_node: Callable[[Context], bool],
        is_follower: Callable[[Any], bool],
    ) -> None:
        """`is_of_nodes` is true if only brokers use the listener. `is_node` returns whether a principal is a
        node's, `is_follower` whether a Fetch comes from a follower.
        """
        self._quotas = quotas
        self._is_of_nodes = is_of_nodes
        self._is_node = is_node
        self._is_follower = is_follower
        self.measures_cpu = False
        """True if some quota limits processor time. A plain attribute, because every turn of a connection reads it.
        """

    def charge(self, context: Context, api_key: int, size: int, request: Any, now: float) -> int:
        """Charge a request of `size` bytes to its client. Return the milliseconds that the client has to wait; they
        are stored in `context.throttle_ms`, too.
        """
        context.throttle_ms = 0
        quotas = self._quotas
        is_produce = api_key == _PRODUCE
        if not is_produce and (api_key in _OF_NODES or (api_key == _FETCH and self._is_follower(request))):
            # The answer and the processor time of this request must stay uncharged, too. Otherwise other
            # clients, which may share the node's accounts, would pay.
            context.quota = _OF_A_NODE
            quotas.note_exempt(size)
            return 0
        share = context.quota
        if (
            not isinstance(share, ClientShare)
            or share.generation != quotas.generation
            or share.client_id is not context.client_id
            or share.principal is not context.principal
        ):
            share = context.quota = self._share_of(context, now)
        if share.is_exempt:
            quotas.note_exempt(size)
            return 0
        seconds = 0.0
        # Most clients have no debt. So test that here, without a call.
        account = share.request
        if account is not None and account.tokens < 0.0:
            seconds = share.request_wait(now)
        if is_produce:
            account = share.produce
            if account is not None and (debt := account.charge(size, now)) > seconds:
                seconds = debt
        elif api_key == _FETCH:
            account = share.fetch
            if account is not None and account.tokens < 0.0:
                seconds = max(seconds, account.wait_seconds(now))
        if seconds > 0.0:
            context.throttle_ms = wait_ms(seconds)
            share.note_wait(is_produce, api_key == _FETCH, context.throttle_ms / _MS_PER_SECOND)
            return context.throttle_ms
        return 0

    def seconds_left(self, context: Context, now: float) -> float:
        """Return the seconds that the client still has to wait under the present quotas: the longest wait of its
        accounts.
        """
        share = context.quota = self._share_of(context, now)
        waits = [share.request_wait(now)]
        waits += [each.wait_seconds(now) for each in (share.produce, share.fetch) if each is not None]
        return max(waits)

    def mutation_rate(self, context: Context) -> float | None:
        """Return the client's quota of metadata changes per second, which the controller enforces. None if
        the client has no such quota.
        """
        user = context.principal.partition(":")[2]
        holding = self._quotas.holding(CONTROLLER_MUTATION_RATE, user, context.client_id or "")
        return None if holding is None else holding.value

    def _share_of(self, context: Context, now: float) -> ClientShare:
        if self._is_of_nodes or self._is_node(context):
            return ClientShare.exempt(context.principal, context.client_id, self._quotas.generation)
        return self._quotas.share_of(context.principal, context.client_id, now)

    def charge_answer(self, context: Context, api_key: int, response: Any, size: int, now: float) -> None:
        """Charge the bytes of an answer to a Fetch; ignore all other answers.

        An answer that makes the client wait is not charged. Otherwise a client that retries at once would always stay
        in debt.
        """
        share = context.quota
        if (
            api_key == _FETCH
            and isinstance(share, ClientShare)
            and share.fetch is not None
            and not response.throttle_time_ms
        ):
            share.fetch.charge(size, now)

    def payer(self, context: Context) -> Callable[[float, float], float] | None:
        """Return a function that charges processor time of long work to the client of the present request; None if
        the client has no such quota.

        The function gets the seconds of processor time and the current time.
        """
        share = context.quota
        if not isinstance(share, ClientShare) or share.request is None:
            return None
        return share.request.charge


def throttled(response: Any, throttle_ms: int) -> Any:
    """Return the response with its throttle time set, if it has that field. The response is copied, because
    handlers may share responses.
    """
    if not hasattr(response, "throttle_time_ms"):
        return response
    changed = copy(response)
    changed.throttle_time_ms = max(throttle_ms, response.throttle_time_ms)
    return changed
