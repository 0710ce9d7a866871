"""Conversations about client metrics (KIP-714) that lead to each answer of GetTelemetrySubscriptions and
PushTelemetry."""

from __future__ import annotations

from collections.abc import Callable

from odradek.wire.batches.compression import CompressionType, compress
from tests.conformance.telemetry.talk import LONG_MS, Talk, case, metrics_data

__all__: list[str] = []

ONE_ID = bytes(15) + b"\x01"
MAX_BYTES = 1 << 20
LONG = str(LONG_MS)


@case("versions")
def versions(talk: Talk) -> None:
    talk.versions(talk.connect())


@case("no subscription")
def no_subscription(talk: Talk) -> None:
    client = talk.connect()
    talk.get(client, bytes(16))
    talk.get(client, ONE_ID)
    talk.get(client)
    talk.get(client)


@case("one subscription")
def one_subscription(talk: Talk) -> None:
    talk.subscribe(metrics="org.apache.kafka.producer", interval_ms=LONG)
    client = talk.connect()
    talk.get(client)
    talk.get(client, bytes(16))
    talk.get(client, talk.id_of("another"))


@case("a subscription without metrics or interval")
def empty_subscription(talk: Talk) -> None:
    talk.subscribe("interval", interval_ms="1000")
    client = talk.connect()
    talk.get(client)
    talk.subscribe("metrics", metrics="a")
    talk.get(client)
    talk.subscribe("empty name", metrics="", interval_ms="2000")
    talk.get(client)


@case("several subscriptions")
def several_subscriptions(talk: Talk) -> None:
    talk.subscribe("first", metrics="b,a", interval_ms=LONG)
    talk.subscribe("second", metrics="a,c", interval_ms="60000")
    client = talk.connect()
    talk.get(client)
    talk.subscribe("third", metrics="*", interval_ms=LONG)
    talk.get(client)
    talk.subscribe("longer than the default", metrics="d", interval_ms="3600000")
    talk.get(client)
    talk.subscribe("second", metrics=None, interval_ms=None, match=None)
    talk.subscribe("first", metrics=None, interval_ms=None, match=None)
    talk.subscribe("third", metrics=None, interval_ms=None, match=None)
    talk.get(client)


@case("pushes in time")
def pushes_in_time(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms="100")
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted)
    talk.push_when_allowed(client, wanted)
    talk.get_when_allowed(client)
    talk.push_when_allowed(client, wanted)


@case("pushes too early")
def pushes_too_early(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted)
    talk.push(client, wanted)
    talk.push(client, wanted + 1)
    talk.get(client)
    talk.push(client, wanted, compression=9)
    talk.push(client, wanted, terminating=True)


@case("a push before any question")
def push_first(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    talk.push(client, talk.own_id("a", interval_ms=LONG_MS))
    talk.get(client)


@case("a push nobody asked for")
def push_unasked(talk: Talk) -> None:
    client = talk.connect()
    talk.push(client, talk.own_id())
    talk.push(client, talk.own_id())


@case("an unknown subscription")
def unknown_subscription(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted ^ 1)
    talk.get(client)
    talk.get(client)
    talk.push(client, wanted)


@case("an unknown subscription of another instance")
def foreign_subscription(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted, instance=talk.id_of("another"))
    talk.push(client, 0, instance=talk.id_of("a third"), terminating=True)
    talk.push(client, 0, instance=talk.id_of("a third"))
    talk.push(client, 0, instance=talk.id_of("a third"))


def _compression_type(number: int) -> None:
    @case(f"compression type {number}")
    def script(talk: Talk) -> None:
        talk.subscribe(metrics="a", interval_ms=LONG)
        client = talk.connect()
        wanted = talk.get(client).subscription_id
        talk.push(client, wanted, compression=number)
        talk.get(client)
        talk.push(client, wanted, compression=number)


for _number in (-128, -1, 5, 9, 127):
    _compression_type(_number)


def _compressed(codec: CompressionType) -> None:
    @case(f"compressed by {codec.name.lower()}")
    def script(talk: Talk) -> None:
        talk.subscribe(metrics="a", interval_ms=LONG)
        client = talk.connect()
        data = compress(codec, metrics_data(), None)
        talk.push(client, talk.get(client).subscription_id, data, compression=codec)

    @case(f"not compressed by {codec.name.lower()}")
    def broken(talk: Talk) -> None:
        talk.subscribe(metrics="a", interval_ms=LONG)
        client = talk.connect()
        wanted = talk.get(client).subscription_id
        talk.push(client, wanted, b"\xff" * 40, compression=codec)
        talk.get(client)
        talk.push(client, wanted, terminating=True)


for _codec in CompressionType:
    if _codec is not CompressionType.NONE:
        _compressed(_codec)


@case("no metrics")
def no_metrics(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    talk.push(client, talk.get(client).subscription_id, b"")


def _of_size(name: str, size: Callable[[], int]) -> None:
    @case(name)
    def script(talk: Talk) -> None:
        talk.subscribe(metrics="a", interval_ms=LONG)
        client = talk.connect()
        padding = size() - len(metrics_data(padding=1 << 19)) + (1 << 19)
        talk.push(client, talk.get(client).subscription_id, metrics_data(padding=padding))
        talk.push(client, talk.own_id("a", interval_ms=LONG_MS), terminating=True)


_of_size("as many bytes as allowed", lambda: MAX_BYTES)
_of_size("a byte too many", lambda: MAX_BYTES + 1)


@case("ids that no client may have")
def reserved_ids(talk: Talk) -> None:
    client = talk.connect()
    talk.push(client, 0, instance=bytes(16))
    talk.push(client, 0, instance=ONE_ID)
    talk.push(client, 0, instance=bytes(16), terminating=True)


@case("the last push")
def last_push(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted)
    talk.push(client, wanted, terminating=True)
    talk.push(client, wanted, terminating=True)
    talk.push(client, wanted)
    talk.push(client, wanted)
    talk.get(client)


@case("a last push that is refused")
def last_push_refused(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted ^ 1, terminating=True)
    talk.push(client, wanted, terminating=True)
    talk.get(client)


@case("a subscription changes")
def subscription_changes(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted)
    talk.subscribe(metrics="b", interval_ms=LONG)
    talk.push(client, wanted)
    talk.get(client)
    talk.push(client, talk.own_id("b", interval_ms=LONG_MS))
    talk.subscribe(metrics="b", interval_ms="1800000")
    talk.get(client)
    talk.subscribe(metrics=None, interval_ms=None, match=None)
    talk.get(client)


@case("a subscription of others changes")
def other_subscription_changes(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    client = talk.connect()
    wanted = talk.get(client).subscription_id
    talk.push(client, wanted)
    talk.subscribe("others", metrics="b", match="client_id=somebody")
    talk.push(client, wanted)
    talk.get(client)


@case("the connection of an instance ends")
def connection_ends(talk: Talk) -> None:
    talk.subscribe(metrics="a", interval_ms=LONG)
    first, second = talk.connect(), talk.connect()
    wanted = talk.get(first).subscription_id
    talk.push(second, wanted)
    talk.get(second)
    first.socket.close()
    talk.get_when_allowed(second)


def _matching(what: str, pattern: str, *, software: tuple[str, str] | None = ("lib", "1.2.3")) -> None:
    @case(f"match {what}")
    def script(talk: Talk) -> None:
        with_ids = pattern.replace("ID", talk.client_id).replace("INSTANCE", _id_text(talk.instance))
        talk.subscribe(metrics="a", match=with_ids)
        client = talk.connect(software)
        port = client.socket.getsockname()[1]
        if "PORT" in with_ids:
            talk.subscribe(metrics="a", match=with_ids.replace("PORT", str(port)))
        talk.get(client)


def _id_text(instance: bytes) -> str:
    from odradek.wire.uuid_text import uuid_to_text

    return uuid_to_text(instance)


for _what, _pattern in {
    "a client id": "client_id=ID",
    "a part of a client id": "client_id=client",
    "the begin of a client id": "client_id=client.*",
    "another letter case": "client_id=CLIENT.*",
    "a library": "client_software_name=lib",
    "another library": "client_software_name=li",
    "a library's version": r"client_software_version=1\.2\..",
    "another version": r"client_software_version=1\.2",
    "an address": r"client_source_address=127\.0\.0\.1",
    "another address": r"client_source_address=127\.0\.0\.2",
    "an instance": "client_instance_id=INSTANCE",
    "another instance": "client_instance_id=A",
    "a port": "client_source_port=PORT",
    "another port": "client_source_port=1",
    "two of two": r"client_id=ID,client_software_name=lib",
    "one of two": r"client_id=ID,client_software_name=other",
    "the later of two patterns": "client_id=nobody,client_id=ID",
    "blanks around a pattern": " client_id = ID ",
}.items():
    _matching(_what, _pattern)
_matching("a library that was not said", "client_software_name=unknown", software=None)
_matching("a version that was not said", "client_software_version=unknown", software=None)
