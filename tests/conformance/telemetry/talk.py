"""Conversations about client metrics over raw connections. Each answer becomes a JSON value without its random
parts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import attrs

from odradek.data_plane.telemetry.client_telemetry import subscription_id
from odradek.wire.config_resources import RESOURCE_CLIENT_METRICS
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.push_telemetry import PushTelemetryRequest
from testkit.raw_requests import RawClient, frame

__all__ = ["CASES", "LONG_MS", "Case", "Talk", "case", "metrics_data"]

LONG_MS = 200_000
PATIENCE_SECONDS = 30.0
THROTTLED = 89


def _field(number: int, data: bytes) -> bytes:
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes([*length, size]) + data


def metrics_data(name: str = "org.apache.kafka.producer.poll.idle.ratio.avg", padding: int = 0) -> bytes:
    """Encode an OTLP `MetricsData` with one gauge of 0.5, and an unknown field of `padding` bytes."""
    point = b"\x21" + b"\x00\x00\x00\x00\x00\x00\xe0\x3f"
    metric = _field(1, name.encode()) + _field(5, _field(1, point))
    scope = _field(2, metric)
    return _field(1, _field(2, scope)) + (_field(15, bytes(padding)) if padding else b"")


class Talk:
    """One conversation: connections, the subscriptions that it makes, and the answers so far."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self.name = name
        self.client_id = f"client of {name}"
        self.answers: list[Any] = []
        self._subscriptions: set[str] = set()
        self._clients: list[RawClient] = []
        self._marks = 0
        self.instance = self.id_of("instance")

    def id_of(self, what: str) -> bytes:
        """Make an id that depends only on the case and on `what`."""
        return hashlib.sha256(f"{self.name} {what}".encode()).digest()[:16]

    def connect(self, software: tuple[str, str] | None = None) -> RawClient:
        """Open a connection. If `software` is given, send the name and version of a client library."""
        client = RawClient(self._bootstrap)
        self._clients.append(client)
        if software is not None:
            self._ask(client, ApiVersionsRequest(*software), 3)
        return client

    def end(self) -> None:
        """Close all connections, and delete the subscriptions."""
        for client in self._clients:
            client.socket.close()
        with RawClient(self._bootstrap) as client:
            for name in self._subscriptions:
                self._alter(client, name, dict.fromkeys(("interval.ms", "metrics", "match")))

    # -- subscriptions ------------------------------------------------------------------------------------------

    def subscribe(self, which: str = "one", /, **keys: str | None) -> None:
        """Make or change a subscription for this case's client id, or for another `match`. Wait until it is in force.

        `None` removes a key. `interval_ms` stands for `interval.ms`.
        """
        keys = {"match": f"client_id={self.client_id}", **keys}
        with RawClient(self._bootstrap) as client:
            self._subscriptions.add(f"{self.name} {which}")
            self._alter(
                client,
                f"{self.name} {which}",
                {key.replace("_", "."): value for key, value in keys.items()},
            )
            self._marks += 1
            mark = f"mark {self._marks} of {self.name}"
            self._subscriptions.add(mark)
            self._alter(client, mark, {"metrics": "marked", "match": f"client_id={mark}"})
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "marked" not in self._asked_by(mark).requested_metrics:
                assert time.monotonic() < deadline, "the subscription does not hold"

    def _asked_by(self, client_id: str) -> Any:
        with RawClient(self._bootstrap) as client:
            return self._ask(client, GetTelemetrySubscriptionsRequest(), 0, client_id)

    def _alter(self, client: RawClient, name: str, values: dict[str, str | None]) -> None:
        changes = [AlterableConfig(key, 1 if value is None else 0, value) for key, value in values.items()]
        resource = AlterConfigsResource(RESOURCE_CLIENT_METRICS, name, changes)
        answer = self._ask(client, IncrementalAlterConfigsRequest([resource]), 1)
        assert answer.responses[0].error_code == 0, answer

    # -- requests, each with its answer in `answers` ------------------------------------------------------------

    def get(self, client: RawClient, instance: bytes | None = None) -> Any:
        """Ask for a subscription."""
        return self._note(self._get(client, instance))

    def get_when_allowed(self, client: RawClient) -> None:
        """Ask until the answer is not THROTTLING_QUOTA_EXCEEDED."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := self._get(client, None)).error_code == THROTTLED:
            assert time.monotonic() < deadline, "throttled for ever"
        self._note(answer)

    def _get(self, client: RawClient, instance: bytes | None) -> Any:
        asked = self.instance if instance is None else instance
        return self._ask(client, GetTelemetrySubscriptionsRequest(asked), 0, self.client_id)

    def _note(self, answer: Any) -> Any:
        many = len(answer.requested_metrics) > 1
        self.answers.append(
            {
                "error": answer.error_code,
                "throttle": answer.throttle_time_ms,
                "instance": _id_text(answer.client_instance_id, self.instance),
                # Kafka computes the id over names in the order of its hash map, so several names give no fixed id.
                "subscription": "a number"
                if many or answer.client_instance_id != self.instance
                else answer.subscription_id,
                "compression": list(answer.accepted_compression_types),
                "interval": answer.push_interval_ms,
                "bytes": answer.telemetry_max_bytes,
                "delta": answer.delta_temporality,
                "metrics": sorted(answer.requested_metrics),
            }
        )
        return answer

    def push(
        self,
        client: RawClient,
        subscription: int,
        metrics: bytes | None = None,
        *,
        compression: int = 0,
        terminating: bool = False,
        instance: bytes | None = None,
    ) -> None:
        """Push metrics."""
        answer = self._push(client, subscription, metrics, compression, terminating, instance)
        self.answers.append({"push": answer.error_code, "throttle": answer.throttle_time_ms})

    def push_when_allowed(self, client: RawClient, subscription: int) -> None:
        """Push until the answer is not THROTTLING_QUOTA_EXCEEDED."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := self._push(client, subscription)).error_code == THROTTLED:
            assert time.monotonic() < deadline, "throttled for ever"
        self.answers.append({"push": answer.error_code})

    def _push(
        self,
        client: RawClient,
        subscription: int,
        metrics: bytes | None = None,
        compression: int = 0,
        terminating: bool = False,
        instance: bytes | None = None,
    ) -> Any:
        request = PushTelemetryRequest(
            self.instance if instance is None else instance,
            subscription,
            terminating,
            compression,
            metrics_data() if metrics is None else metrics,
        )
        return self._ask(client, request, 0, self.client_id)

    def versions(self, client: RawClient) -> None:
        """Keep the advertised versions of the two requests."""
        answer = self._ask(client, ApiVersionsRequest("conformance", "1"), 3)
        found = {each.api_key: [each.min_version, each.max_version] for each in answer.api_keys}
        self.answers.append({"get": found.get(71), "push": found.get(72)})

    def own_id(self, *metrics: str, interval_ms: int = 300_000) -> int:
        """Compute the subscription id of this case's client instance for these metrics."""
        return subscription_id(self.instance, metrics, interval_ms)

    def _ask(self, client: RawClient, message: Any, version: int, client_id: str = "conformance") -> Any:
        client.send(frame(message, version, client_id=client_id.encode()))
        return client.receive(message.API_KEY, version)


def _id_text(answered: bytes, asked: bytes) -> str:
    return "none" if answered == bytes(16) else "as asked" if answered == asked else "a new one"


@attrs.frozen
class Case:
    """One conversation."""

    name: str
    script: Callable[[Talk], None]

    def answers(self, bootstrap: str) -> list[Any]:
        """Run the conversation, and return its answers."""
        talk = Talk(bootstrap, self.name)
        try:
            self.script(talk)
        finally:
            talk.end()
        return talk.answers


CASES: list[Case] = []


def case(name: str) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Register a conversation under a name."""

    def enter(script: Callable[[Talk], None]) -> Callable[[Talk], None]:
        CASES.append(Case(name, script))
        return script

    return enter
