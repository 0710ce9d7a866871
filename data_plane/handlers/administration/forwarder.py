"""The forwarding of clients' requests about the cluster to the active controller (KIP-590)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from odradek.data_plane.handlers.desk import Desk
from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.controller.limits import check_named, names_more_than
from odradek.metadata_quorum.controller_channel import LONG_ELEMENTS
from odradek.metadata_quorum.envelope import Sender
from odradek.metadata_quorum.ports import ControllerPort
from odradek.serving.contract import Context
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.structure import Message

T = TypeVar("T")


def names_many(request: Message) -> bool:
    """True if the request names so many things that their processing takes more than a millisecond."""
    return names_more_than(request, LONG_ELEMENTS)


def sender_of(context: Context) -> Sender:
    """Describe the client for the controller.

    Call this before the handler returns, while `context` belongs to this request.
    """
    by_token = context.login is not None and context.login.by_token
    return Sender(context.principal, context.client_id or "", context.client_address, by_token)


class Forwarder:
    """The forwarder of clients' requests to the active controller."""

    def __init__(self, desk: Desk, controller: ControllerPort) -> None:
        self._desk = desk
        self._controller = controller

    async def ask(self, sender: Sender, request: Any, version: int, timeout_ms: int | None = None) -> Any:
        """Forward a client's request to the active controller, and return the response.

        The broker waits `request.timeout.ms` for the response, or `timeout_ms` if this is less.

        Raises `KafkaError`: REQUEST_TIMED_OUT (without a text, as in Kafka), NOT_CONTROLLER, or
        POLICY_VIOLATION for a request that a controller would refuse because of its size. If the timeout is 0
        or less, nothing is forwarded.
        """
        if names_many(request):
            await self.beside_loop(check_named, request)
        longest_ms = self._desk.settings.request_timeout_ms
        timeout_ms = longest_ms if timeout_ms is None else min(timeout_ms, longest_ms)
        if timeout_ms <= 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "")
        try:
            deadline = self._desk.clock.monotonic() + timeout_ms / 1000
            return await self._controller.forward(sender, request, version, deadline)
        except ConnectionLost as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
        except KafkaError as error:
            raise KafkaError(error.code, "") from error

    async def beside_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function`, which processes a long request, in a worker thread as long work.

        Returns its result.
        """
        return await self._desk.long_work.begin().in_worker(function, *args)

    async def refuse_in_turn(
        self, refuse: Callable[[Any, ErrorCode, Any], Any], request: Message, error: KafkaError
    ) -> Any:
        """Build the response that has this error for all items of a request. For a long request, a worker
        thread builds it.
        """
        text = error.message or None
        if names_many(request):
            return await self.beside_loop(refuse, request, error.code, text)
        return refuse(request, error.code, text)
