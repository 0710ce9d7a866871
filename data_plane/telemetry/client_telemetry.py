"""The telemetry of a broker's clients (KIP-714): what each client must push, which questions and pushes are
refused, the accepted figures. PURE.

Theory of operation
-------------------
A client asks any broker for its subscription. The answer has an id for the client instance, the metrics to
push, and the interval. Then the client pushes to any broker. A broker keeps a `ClientInstance` for each
instance id that it has seen, with the times of its requests. All answers are those of Apache Kafka 4.3:

* A request that arrives before the interval is over gets THROTTLING_QUOTA_EXCEEDED. After a new subscription
  the first push may arrive at once. If the last push got an error that a new request for the subscription
  resolves, this request may arrive at once, too.
* A push for an older subscription gets UNKNOWN_SUBSCRIPTION_ID. The client then asks for its subscription
  again. A subscription's id is computed from its metrics, its interval and the instance id, so that all brokers
  compute the same id.
* A client that terminates may send its last push early. Any later push is refused.

Clients choose their instance ids, so there are at most `INSTANCES_MAX` instances. If there are as many, a new
instance replaces the instance that was silent for longest. An instance is also dropped when its connection
ends, and when it was silent for three intervals. A drop does no harm, because the client's next request creates
the instance again.

Figures are kept for each user and client id (`odradek.data_plane.telemetry.known_clients`), so that clients
cannot create any number of time series.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import attrs
import crc32c

from odradek.data_plane.telemetry.figures import Pushed
from odradek.data_plane.telemetry.known_clients import ClientInstance, KnownClients, Software
from odradek.data_plane.telemetry.subscriptions import Subscriptions, Wanted
from odradek.serving.steps import Work
from odradek.wire.batches.compression import CompressionType
from odradek.wire.errors import ErrorCode
from odradek.wire.structure import ZERO_UUID
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["ACCEPTED", "INSTANCES_MAX", "Asker", "ClientTelemetry", "is_reserved", "subscription_id"]

INSTANCES_MAX = 5_000
SILENT_SECONDS_MIN = 60.0
SILENT_INTERVALS = 3
"""The number of intervals of silence after which an instance is dropped. It is never dropped before a minute
of silence.
"""
SWEEP_SECONDS = 30.0
ACCEPTED = (CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP, CompressionType.SNAPPY)
"""The accepted compression types, in the order in which clients should choose. A push without compression is
accepted, too.
"""
_RESERVED = (ZERO_UUID, bytes(15) + b"\x01")
_ASK_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@attrs.frozen
class Asker:
    """The properties of the sender of a telemetry request, as the broker knows them."""

    principal: str
    client_id: str | None
    software: Software
    address: str
    port: int

    def attributes(self, instance_id: bytes) -> dict[str, str | None]:
        """Return the client's properties, by the names under which a subscription's patterns match them."""
        return {
            "client_instance_id": uuid_to_text(instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software[0],
            "client_software_version": self.software[1],
            "client_source_address": self.address,
            "client_source_port": str(self.port),
        }


class ClientTelemetry:
    """The subscriptions, client instances and figures of one broker."""

    def __init__(
        self,
        telemetry_bytes_max: int,
        new_uuid: Callable[[], bytes],
        log_unreadable: Callable[[str, str], None],
        instances_max: int = INSTANCES_MAX,
    ) -> None:
        self.telemetry_bytes_max = telemetry_bytes_max
        self.clients = KnownClients()
        self._subscriptions = Subscriptions(log_unreadable)
        self._new_uuid = new_uuid
        self._instances_max = instances_max
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        """The client instances by id. The sender of the latest request is last."""
        self._sweep_at = float("-inf")
        self._pushes = 0

    def follow(
        self, configs: Mapping[tuple[int, str], Mapping[str, str]], changed: Iterable[tuple[int, str]]
    ) -> None:
        """Apply those changed configurations that are telemetry subscriptions."""
        self._subscriptions.follow(configs, changed)

    def new_instance_id(self) -> bytes:
        """Return a new random instance id. As in Kafka, its text does not begin with a dash."""
        while True:
            made = self._new_uuid()
            if made not in self._instances and made not in _RESERVED and made[0] >> 2 != 62:
                return made

    def instance(
        self, instance_id: bytes, asker: Asker, now: float, made: Callable[[bytes], None]
    ) -> Work[ClientInstance]:
        """Return the instance with this id, or create it. After a change of the subscriptions the instance is
        created again. `made` is called with the id of each created instance.
        """
        self._sweep(now)
        found = self._instances.get(instance_id)
        if found is None or found.version < self._subscriptions.version:
            version = self._subscriptions.version
            wanted = yield from self._subscriptions.wanted_of(asker.attributes(instance_id))
            found = self._add(instance_id, wanted, version, asker, now)
            made(instance_id)
        self._instances.move_to_end(instance_id)
        found.expires_at = now + max(SILENT_SECONDS_MIN, SILENT_INTERVALS * found.interval_ms / 1000)
        return found

    def _add(
        self, instance_id: bytes, wanted: Wanted, version: int, asker: Asker, now: float
    ) -> ClientInstance:
        client = self.clients.find(asker.principal, asker.client_id, now)
        made = ClientInstance(
            instance_id,
            client,
            wanted.metrics,
            wanted.interval_ms,
            subscription_id(instance_id, wanted.metrics, wanted.interval_ms),
            version,
        )
        before = self._instances.pop(instance_id, None)
        if before is not None:
            made.gauges = before.gauges
            before.client.forget(before, now)
        elif len(self._instances) >= self._instances_max:
            _, oldest = self._instances.popitem(last=False)
            oldest.client.forget(oldest, now)
        self._instances[instance_id] = client.instances[instance_id] = made
        client.software, client.address = asker.software, asker.address
        client.interval_ms = wanted.interval_ms
        return made

    def forget(self, instance_id: bytes, now: float) -> None:
        """Drop an instance whose connection has ended."""
        gone = self._instances.pop(instance_id, None)
        if gone is not None:
            gone.client.forget(gone, now)

    def refuse_question(self, instance: ClientInstance, now: float) -> ErrorCode:
        """Check a request for a subscription. Returns NONE to accept it, or THROTTLING_QUOTA_EXCEEDED if it
        arrives too early.
        """
        last = max(instance.got_at, instance.pushed_at)
        if now - last >= instance.interval_ms / 1000:
            instance.got_at = now
        elif instance.last_error not in _ASK_AGAIN:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        instance.last_error = ErrorCode.NONE
        return ErrorCode.NONE

    def refuse_push(
        self,
        instance: ClientInstance,
        subscription: int,
        compression_type: int,
        size: int,
        now: float,
        *,
        is_terminating: bool,
    ) -> ErrorCode:
        """Check a push of `size` bytes, in Kafka's order of checks.

        Returns NONE to accept it, or the error.
        """
        code = self._refused(instance, subscription, compression_type, size, now, is_terminating)
        instance.is_terminating = is_terminating
        instance.last_error = code
        return code

    def _refused(
        self,
        instance: ClientInstance,
        subscription: int,
        compression_type: int,
        size: int,
        now: float,
        is_terminating: bool,
    ) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.INVALID_REQUEST
        if instance.got_at > instance.pushed_at or now - instance.pushed_at >= instance.interval_ms / 1000:
            instance.pushed_at = now
        elif not is_terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if subscription != instance.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if compression_type not in ACCEPTED and compression_type != CompressionType.NONE:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if size > self.telemetry_bytes_max:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def take(self, instance: ClientInstance, asker: Asker, pushed: Pushed, now: float) -> None:
        """Store the numbers of an accepted push."""
        client = self.clients.find(asker.principal, asker.client_id, now)
        if client is not instance.client:
            # The instance's client was dropped to make room, or a client with another name uses this instance
            # id. So move the instance to the client that was found.
            instance.client.forget(instance, now)
            instance.client = client
        if self._instances.get(instance.instance_id) is instance:
            client.instances[instance.instance_id] = instance
        client.take(instance, pushed, now)
        self._pushes += 1

    def _sweep(self, now: float) -> None:
        """Drop instances that were silent for too long, at most once in `SWEEP_SECONDS`."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        for gone in [each for each in self._instances.values() if each.expires_at < now]:
            self.forget(gone.instance_id, now)
        self.clients.drop_ended(now)

    def statistics(self, now: float) -> dict[str, int]:
        """Return figures for metrics: the numbers of instances, clients, subscriptions and accepted pushes."""
        self._sweep(now)
        return {
            "instances": len(self._instances),
            "clients": len(self.clients),
            "subscriptions": len(self._subscriptions),
            "pushes": self._pushes,
        }


def subscription_id(instance_id: bytes, metrics: Iterable[str], interval_ms: int) -> int:
    """Compute the id of one client's subscription, as a signed 32-bit number.

    The id is the same on all brokers. After a change of the subscription, the id differs (KIP-714).
    """
    text = f"[{', '.join(metrics)}]{interval_ms}"
    low = int.from_bytes(instance_id[:8]) ^ int.from_bytes(instance_id[8:])
    number = crc32c.crc32c(text.encode()) ^ (low >> 32) ^ (low & 0xFFFFFFFF)
    return number - (1 << 32) if number >> 31 else number


def is_reserved(instance_id: bytes) -> bool:
    """True if the protocol reserves this id, so that no client may use it."""
    return instance_id in _RESERVED
