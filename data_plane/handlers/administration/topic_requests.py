"""CreateTopics and DeleteTopics: decided by the controller, asked for over the peer channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.data_plane.broker import Broker
from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.controller.limits import check_named, names_more_than
from odradek.metadata_quorum.controller_channel import LONG_ELEMENTS
from odradek.metadata_quorum.envelope import Sender
from odradek.serving.contract import Context, Result, Suspend
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_topics import CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.schema.anatomy import refuse
from odradek.wire.structure import Message


class CreateTopicsHandler:
    """Handler of CreateTopics (API 19), which the controller decides."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: CreateTopicsRequest) -> Result:
        version, sender = context.api_version, sender_of(context)

        async def ask() -> Any:
            try:
                return await ask_controller(self._broker, sender, request, request.timeout_ms, version)
            except KafkaError as error:
                return await refuse_in_turn(self._broker, refuse, request, error)

        return Suspend(ask, is_long=names_many(request))


class DeleteTopicsHandler:
    """API 20. Versions before 6 list names in a field of their own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: DeleteTopicsRequest) -> Result:
        version, sender = context.api_version, sender_of(context)

        async def ask() -> Any:
            try:
                return await ask_controller(self._broker, sender, request, request.timeout_ms, version)
            except KafkaError as error:
                return await refuse_in_turn(self._broker, refuse, request, error)

        return Suspend(ask, is_long=names_many(request))


def names_many(request: Message) -> bool:
    """True if the request names so many things that work on all of them takes more than a millisecond."""
    return names_more_than(request, LONG_ELEMENTS)


async def refuse_in_turn(
    broker: Broker, refuse: Callable[[Any, ErrorCode, Any], Any], request: Message, error: KafkaError
) -> Any:
    """One error for all of a request's things."""
    text = error.message or None
    if names_many(request):
        return await broker.long_work.begin().in_worker(refuse, request, error.code, text)
    return refuse(request, error.code, text)


def sender_of(context: Context) -> Sender:
    """The client, as the controller is told of it. Call this while the request is dispatched."""
    by_token = context.login is not None and context.login.by_token
    return Sender(context.principal, context.client_id or "", context.client_address, by_token)


async def ask_controller(broker: Broker, sender: Sender, request: Any, timeout_ms: int, version: int) -> Any:
    """The controller's response to a client's request.

    Raises `KafkaError` REQUEST_TIMED_OUT (without a text, as Kafka's), NOT_CONTROLLER, or POLICY_VIOLATION for what a
    controller would refuse for its size. With a timeout of 0 or less, the controller is not asked at all.
    """
    if names_many(request):
        await broker.long_work.begin().in_worker(check_named, request)
    if timeout_ms <= 0:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "")
    timeout_ms = min(timeout_ms, broker.settings.request_timeout_ms)
    try:
        deadline = broker.clock.monotonic() + timeout_ms / 1000
        return await broker.controller.forward(sender, request, version, deadline)
    except ConnectionLost as error:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
    except KafkaError as error:
        raise KafkaError(error.code, "") from error
