"""GetTelemetrySubscriptions and PushTelemetry (KIP-714): the metrics that clients push, and a list of clients
for operators. PORTED.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from odradek.data_plane.telemetry.client_telemetry import ACCEPTED, Asker, ClientTelemetry, is_reserved
from odradek.data_plane.telemetry.figures import SLOTS, Pushed, figure_of, gather, role_of
from odradek.data_plane.telemetry.known_clients import ClientInstance, KnownClient
from odradek.data_plane.telemetry.otlp import MalformedMetrics, TooManyFields, read_points
from odradek.serving.contract import Context, Result
from odradek.serving.long_work import LongWork
from odradek.serving.steps import StepDriver, Steps, Work, in_slices, in_turn
from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb
from odradek.wire.batches.compression import decompress
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.get_telemetry_subscriptions import (
    ClientFigure,
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from odradek.wire.messages.get_telemetry_subscriptions import KnownClient as DescribedClient
from odradek.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from odradek.wire.structure import ZERO_UUID

__all__ = ["GetTelemetrySubscriptionsHandler", "PushTelemetryHandler"]

_Made: TypeAlias = Callable[[bytes], None]
"""A function that is called with the id of a client instance that was created."""

SMALL_BYTES = 2 * 1024
"""The largest push, in bytes, that is read on the event loop, unless it decompresses to more than
`SMALL_INFLATED_BYTES`.
"""
SMALL_INFLATED_BYTES = 8 * 1024
INFLATED_TIMES = 16
"""The limit of a push's decompressed size, as a multiple of `telemetry.max.bytes`. `INFLATED_BYTES_MAX` is a
second limit.
"""
INFLATED_BYTES_MAX = 32 << 20


class GetTelemetrySubscriptionsHandler:
    """Handler of GetTelemetrySubscriptions (API 71).

    A request with Odradek's own field gets a list of the broker's clients instead, and creates no instance.
    """

    def __init__(self, telemetry: ClientTelemetry, long_work: LongWork) -> None:
        self._telemetry = telemetry
        self._long_work = long_work

    def handle(self, context: Context, request: GetTelemetrySubscriptionsRequest) -> Result:
        if request.include_clients:
            return in_slices(self._long_work, self._list(request.client_id))
        instance_id = request.client_instance_id
        if instance_id == ZERO_UUID:
            instance_id = self._telemetry.new_instance_id()
        made = partial(_forget_at_end, self._telemetry, self._long_work, context.own)
        asker = _asker(context)
        return in_slices(self._long_work, self._answer(instance_id, asker, made))

    def _answer(
        self, instance_id: bytes, asker: Asker, made: _Made
    ) -> Work[GetTelemetrySubscriptionsResponse]:
        telemetry = self._telemetry
        now = self._long_work.clock.monotonic()
        instance = yield from telemetry.instance(instance_id, asker, now, made)
        code = telemetry.refuse_question(instance, now)
        if code:
            return GetTelemetrySubscriptionsResponse(0, code)
        return GetTelemetrySubscriptionsResponse(
            0,
            ErrorCode.NONE,
            instance_id,
            instance.subscription_id,
            [int(each) for each in ACCEPTED],
            instance.interval_ms,
            telemetry.telemetry_bytes_max,
            True,
            list(instance.metrics),
        )

    def _list(self, client_id: str | None) -> Work[GetTelemetrySubscriptionsResponse]:
        now = self._long_work.clock.monotonic()
        self._telemetry.statistics(now)
        found: list[DescribedClient] = []
        for client in self._telemetry.clients.all():
            if client_id is None or client.client_id == client_id:
                found.append(_described(client, now))
                yield 1 + len(client.instances) + len(found[-1].figures)
        return GetTelemetrySubscriptionsResponse(clients=found)


class PushTelemetryHandler:
    """Handler of PushTelemetry (API 72)."""

    def __init__(self, telemetry: ClientTelemetry, long_work: LongWork) -> None:
        self._telemetry = telemetry
        self._long_work = long_work

    def handle(self, context: Context, request: PushTelemetryRequest) -> Result:
        if is_reserved(request.client_instance_id):
            return PushTelemetryResponse(0, ErrorCode.INVALID_REQUEST)
        made = partial(_forget_at_end, self._telemetry, self._long_work, context.own)
        return StepDriver(self._long_work).begin(self._take(_asker(context), request, made))

    def _take(self, asker: Asker, request: PushTelemetryRequest, made: _Made) -> Steps[PushTelemetryResponse]:
        telemetry, metrics = self._telemetry, request.metrics
        now = self._long_work.clock.monotonic()
        instance = yield from telemetry.instance(request.client_instance_id, asker, now, made)
        code = telemetry.refuse_push(
            instance,
            request.subscription_id,
            request.compression_type,
            len(metrics),
            now,
            is_terminating=request.terminating,
        )
        if not code and metrics:
            inflated_max = min(INFLATED_TIMES * telemetry.telemetry_bytes_max, INFLATED_BYTES_MAX)
            code = yield from self._read(instance, asker, request.compression_type, metrics, inflated_max)
        return PushTelemetryResponse(0, code)

    def _read(
        self,
        instance: ClientInstance,
        asker: Asker,
        compression_type: int,
        metrics: bytes,
        inflated_max: int,
    ) -> Steps[ErrorCode]:
        """Read the numbers of a push, and store them.

        A large push is read in a worker. Returns NONE or the error code.
        """
        try:
            pushed = _small(compression_type, metrics)
            if pushed is None:
                pushed = yield in_turn(self._long_work, _inflated, compression_type, metrics, inflated_max)
        except (DecompressionBomb, TooManyFields):
            return ErrorCode.TELEMETRY_TOO_LARGE
        except (CorruptBatch, MalformedMetrics):
            instance.last_error = ErrorCode.INVALID_RECORD
            return ErrorCode.INVALID_RECORD
        self._telemetry.take(instance, asker, pushed, self._long_work.clock.monotonic())
        return ErrorCode.NONE


def _small(compression_type: int, metrics: bytes) -> Pushed | None:
    """Read a push at once if it is small. Returns None if it is large."""
    if len(metrics) > SMALL_BYTES:
        return None
    try:
        return _inflated(compression_type, metrics, SMALL_INFLATED_BYTES)
    except DecompressionBomb:
        return None


def _inflated(compression_type: int, metrics: bytes, inflated_max: int) -> Pushed:
    return gather(read_points(decompress(compression_type, metrics, inflated_max), SLOTS))


def _asker(context: Context) -> Asker:
    return Asker(
        context.principal,
        context.client_id,
        context.own.software,
        context.client_address,
        context.client_port,
    )


def _forget_at_end(
    telemetry: ClientTelemetry, long_work: LongWork, connection: Context, instance_id: bytes
) -> None:
    """Drop the instance when its connection ends, as Kafka does."""
    connection.on_end = lambda: telemetry.forget(instance_id, long_work.clock.monotonic())


def _described(client: KnownClient, now: float) -> DescribedClient:
    return DescribedClient(
        client.principal,
        client.client_id,
        *client.software,
        client.address,
        len(client.instances),
        client.interval_ms,
        client.pushes,
        -1 if client.pushed_at is None else int((now - client.pushed_at) * 1000),
        [ClientFigure(role_of(slot), figure_of(slot).name, value) for slot, value in client.figures()],
    )
