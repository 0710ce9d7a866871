"""Pushes to a whole node are accepted or refused, and shown. An instance ends with its connection."""

from __future__ import annotations

from typing import cast

import pytest

from odradek.wire.batches.compression import CompressionType, compress
from odradek.wire.config_resources import RESOURCE_CLIENT_METRICS
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    KnownClient,
)
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from sim.machine.world import World
from testkit.lone_node import Connect, Script, play, request
from testkit.virtual import Client
from tests.node.test_metrics import LISTENER, samples
from tests.telemetry.encoding import PushedMetric, field, metrics_data, pushed_by

ID = bytes(range(16))
SENT = PushedMetric("org.apache.kafka.producer.record.send.total", ((5, False),), is_sum=True)
LATENCY = PushedMetric("org.apache.kafka.producer.request.latency.max", ((250.0, False),))
MANY = metrics_data(SENT, LATENCY, *(PushedMetric(f"metric.{number}") for number in range(400)))
"""More fields than a node reads on its loop."""
OF_RAW = "user=ANONYMOUS,client_id=raw"


def play_subscribed(script: Script, **settings: str) -> None:
    """Run a script on a node with a metrics page, and with a subscription of all metrics at the shortest interval."""

    async def subscribed(world: World, connect: Connect) -> None:
        changes = [AlterableConfig("metrics", 0, "*"), AlterableConfig("interval.ms", 0, "100")]
        resource = AlterConfigsResource(RESOURCE_CLIENT_METRICS, "all", changes)
        await request(await connect(), IncrementalAlterConfigsRequest([resource]), 1)
        await script(world, connect)

    shown = {"odradek_metrics_listener": LISTENER, "odradek_metrics_names": "true"}
    play(subscribed, **{**shown, **settings})


async def ask(client: Client, instance: bytes = ID) -> GetTelemetrySubscriptionsResponse:
    answer = await request(client, GetTelemetrySubscriptionsRequest(instance), 0)
    return cast("GetTelemetrySubscriptionsResponse", answer)


async def push(
    client: Client, subscription: int, metrics: bytes, codec: int = 0, *, last: bool = False
) -> ErrorCode:
    asked = PushTelemetryRequest(ID, subscription, last, codec, metrics)
    answer = await request(client, asked, 0)
    return ErrorCode(cast("PushTelemetryResponse", answer).error_code)


async def listed(client: Client, client_id: str | None = None) -> list[KnownClient]:
    """Return the clients that the node lists in our own field of the answer."""
    asked = GetTelemetrySubscriptionsRequest(include_clients=True, client_id=client_id)
    found = cast("GetTelemetrySubscriptionsResponse", await request(client, asked, 0)).clients
    assert found is not None
    return found


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("metrics", [metrics_data(SENT, LATENCY), MANY], ids=["small", "large"])
def test_what_is_pushed_is_shown(codec: CompressionType, metrics: bytes) -> None:
    """The metrics page and the list show user, client id, library and figures of a client that has pushed."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await request(client, ApiVersionsRequest("lib", "1.2"), 3)
        wanted = (await ask(client)).subscription_id
        assert await push(client, wanted, compress(codec, metrics, None), codec) == ErrorCode.NONE
        shown = await samples(world)
        assert shown[f"odradek_client_info{{{OF_RAW},library=lib,version=1.2}}"] == 1
        assert shown[f"odradek_client_records_sent_total{{{OF_RAW},role=producer}}"] == 5
        assert shown[f"odradek_client_request_latency_max_seconds{{{OF_RAW},role=producer}}"] == 0.25
        assert shown["odradek_client_pushes_total{}"] == shown["odradek_client_instances{}"] == 1
        (found,) = await listed(client, "raw")
        assert (found.principal, found.client_id) == ("User:ANONYMOUS", "raw")
        assert (found.software_name, found.software_version) == ("lib", "1.2")
        assert (found.instances, found.pushes, found.push_interval_ms) == (1, 1, 100)
        assert {each.name: each.value for each in found.figures} == {
            "request_latency_max_seconds": 0.25,
            "records_sent_total": 5.0,
        }
        assert found.since_push_ms >= 0
        assert await listed(client, "another") == []
        assert len(await listed(client)) == 1

    play_subscribed(script)


def test_names_are_not_shown_to_everybody() -> None:
    """If names are turned off, the page shows the number of clients and no names."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await push(client, (await ask(client)).subscription_id, metrics_data(SENT))
        shown = await samples(world)
        assert shown["odradek_clients{}"] == shown["odradek_client_pushes_total{}"] == 1
        assert not [name for name in shown if "client_id=" in name]

    play_subscribed(script, odradek_metrics_names="false")


def test_an_instance_goes_with_its_connection() -> None:
    """When a client's connection closes, its instance is dropped, and its figures are kept for some minutes."""

    async def script(world: World, connect: Connect) -> None:
        client, other = await connect(), await connect()
        await push(client, (await ask(client)).subscription_id, metrics_data(LATENCY), last=True)
        client.conn.close()
        while (await samples(world))["odradek_client_instances{}"]:
            await world.node_env("client").clock.sleep_until(0.0)
        (found,) = await listed(other)
        assert (found.instances, found.pushes) == (0, 1)
        assert [each.value for each in found.figures] == [0.25]

    play_subscribed(script)


BOMB = bytes(20 << 20)


@pytest.mark.parametrize(
    ("codec", "metrics", "code"),
    [
        (0, b"\xff" * 40, ErrorCode.INVALID_RECORD),
        (0, b"\xff" * 5000, ErrorCode.INVALID_RECORD),
        (0, pushed_by("java_consumer")[:-1], ErrorCode.INVALID_RECORD),
        (4, b"no zstd" * 1000, ErrorCode.INVALID_RECORD),
        *((codec, compress(codec, BOMB, None), ErrorCode.TELEMETRY_TOO_LARGE) for codec in (1, 3, 4)),
        (0, field(1, b"") * 100_001, ErrorCode.TELEMETRY_TOO_LARGE),
        (4, compress(CompressionType.ZSTD, field(1, b"") * 100_001, None), ErrorCode.TELEMETRY_TOO_LARGE),
        (0, bytes((1 << 20) + 1), ErrorCode.TELEMETRY_TOO_LARGE),
        (0, b"", ErrorCode.NONE),
        (0, field(9, b"something else"), ErrorCode.NONE),
    ],
    ids=str,
)
def test_hostile_payloads_are_refused(codec: int, metrics: bytes, code: ErrorCode) -> None:
    """Bytes that are no OTLP, decompression bombs and too many fields get an error, and the node goes on."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        wanted = (await ask(client)).subscription_id
        assert await push(client, wanted, metrics, codec) == code
        assert await push(client, wanted, metrics_data(SENT), last=True) == ErrorCode.NONE
        (found,) = await listed(client)
        assert [each.value for each in found.figures] == [5.0]

    play_subscribed(script)


def test_a_smaller_limit_is_told_and_holds() -> None:
    """`telemetry.max.bytes` limits the compressed size of a push, and the subscription shows the limit."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        wanted = await ask(client)
        assert wanted.telemetry_max_bytes == 100
        code = await push(client, wanted.subscription_id, metrics_data(SENT, LATENCY))
        assert code == ErrorCode.TELEMETRY_TOO_LARGE

    play_subscribed(script, telemetry_max_bytes="100")


def test_the_list_of_clients_needs_a_right() -> None:
    """Every client may push, but the list of clients needs the right DESCRIBE on the cluster."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        assert (await ask(client)).error_code == ErrorCode.NONE
        asked = GetTelemetrySubscriptionsRequest(include_clients=True)
        answer = cast("GetTelemetrySubscriptionsResponse", await request(client, asked, 0))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert answer.clients is None

    play(
        script,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:admin",
    )
