"""The metrics page: exact counts, the format of Prometheus, and HTTP requests of any kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from odradek.data_plane.telemetry.figures import FIGURES
from odradek.env.ports import Clock, Conn, ConnectionLost
from odradek.node.connections.complaints import PEERS_MAX, Complaints
from odradek.node.metrics.hosted_figures import Slices
from odradek.node.metrics.metrics_text import MetricsText
from odradek.node.metrics.page.metrics_server import (
    ASK_SECONDS_MAX,
    CONNECTION_SECONDS_MAX,
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    MetricsServer,
)
from odradek.node.metrics.page.page_forms import PageForm
from odradek.node.metrics.page.page_maker import OTHERS_SHARE, PageMaker
from odradek.node.metrics.partition_metrics import TOPICS_MAX
from odradek.node.node import NodeCannotStart
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS
from odradek.wire.codec import encode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.produce import ProduceRequest, ProduceResponse
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.lone_node import (
    create_topic,
    fetch_request,
    play,
    produce,
    produce_request,
    request,
)
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

PORT = 9404
LISTENER = f"server:{PORT}"
GET = b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n"
DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
NOT_ON_THIS_PAGE = {
    "odradek_quorum_voter_silent_seconds": ["voter"],
    "odradek_certificate_time_left_seconds": ["listener"],
    "odradek_certificate_days_left": ["listener"],
    "odradek_certificate_reloads_total": ["listener"],
    "odradek_certificate_reload_failures_total": ["listener"],
    "odradek_connections_entering": ["listener"],
    "odradek_connections_not_let_in_total": ["listener"],
    "odradek_errors_total": ["api", "error"],
    "odradek_logins_total": ["listener", "mechanism"],
    "odradek_logins_failed_total": ["listener", "mechanism"],
    "odradek_denials_total": ["api"],
    "odradek_quota": ["client_id", "key", "user"],
    "odradek_quota_used_total": ["client_id", "key", "user"],
    "odradek_quota_throttled_seconds_total": ["client_id", "key", "user"],
    "odradek_client_info": ["client_id", "library", "user", "version"],
    **{f"odradek_client_{figure.name}": ["client_id", "role", "user"] for figure in FIGURES},
    "odradek_group_lag_records": ["group", "topic"],
    "odradek_group_lag_seconds": ["group", "topic"],
    "odradek_follower_lag_max_records": ["leader"],
    "odradek_replication_in_bytes_total": ["leader"],
    "odradek_transaction_age_seconds": ["partition"],
    "odradek_prepared_transaction_age_seconds": ["partition"],
}
"""Labels that appear only in a larger cluster, or after errors."""
OF_PARTS = ("odradek_broker_", "odradek_controller_")

Connect = Callable[[], Awaitable[Client]]
Samples = dict[str, float]


async def read_to_end(conn: Conn) -> bytes:
    """Return all that the peer sends until it closes."""
    received = bytearray()
    buffer = memoryview(bytearray(65536))
    while True:
        try:
            await conn.readable()
            count = conn.recv_into(buffer)
        except ConnectionLost:
            return bytes(received)
        if count == 0:
            return bytes(received)
        received += buffer[: count or 0]


async def send(conn: Conn, data: bytes) -> None:
    while data:
        data = data[conn.send([data]) :]
        if data:
            await conn.writable()


async def http(world: World, data: bytes) -> bytes:
    """Send these bytes on a new connection; return the answer."""
    conn = await world.node_env("client").network.connect("server", PORT)
    await send(conn, data)
    return await read_to_end(conn)


async def page(world: World) -> str:
    head, _, body = (await http(world, GET)).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert f"Content-Length: {len(body)}" in lines
    return body.decode()


def parsed(text: str) -> Samples:
    """Parse a page with prometheus_client; return the number for each `name{label=value,...}`."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}"
            assert key not in found, f"{key} appears twice on the page"
            found[key] = sample.value
    return found


async def samples(world: World) -> Samples:
    return parsed(await page(world))


def play_measured(
    script: Callable[[World, Connect], Awaitable[None]], weather: Weather | None = None
) -> None:
    play(script, weather, odradek_metrics_listener=LISTENER, odradek_metrics_names="true")


# -- counters -------------------------------------------------------------------------------------------------------


def test_requests_bytes_and_errors_are_counted_exactly() -> None:
    """Each answered request, each byte of its frames and each error code of its response is counted."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        asked = produce_request(good_batch(1, timestamp_ms=1))
        for _ in range(3):
            await request(client, asked, 9)
        unknown = MetadataRequest(
            [MetadataRequestTopic(name=name) for name in ("a", "b")], allow_auto_topic_creation=False
        )
        await request(client, unknown, 9)
        found = await samples(world)
        assert found["odradek_requests_total{api=Produce,version=9}"] == 3
        assert found["odradek_request_seconds_count{api=Produce}"] == 3
        assert found["odradek_request_bytes_total{api=Produce}"] == 3 * len(frame(asked, 9))
        answer_bytes = 4 + len(encode_answer(await request(client, asked, 9)))
        assert (await samples(world))["odradek_response_bytes_total{api=Produce}"] == 4 * answer_bytes
        assert found["odradek_requests_total{api=Metadata,version=9}"] == 1
        assert found["odradek_errors_total{api=Metadata,error=UNKNOWN_TOPIC_OR_PARTITION}"] == 2
        assert not any(name.startswith("odradek_errors_total{api=Produce") for name in found)
        assert found["odradek_log_end_offsets{}"] == 3
        assert found["odradek_topic_log_end_offsets{topic=t}"] == 3
        assert found["odradek_connections{listener=PLAINTEXT}"] == 1

    play_measured(script)


def encode_answer(response: object) -> bytes:
    """Encode a Produce response of version 9 with its header, without the length field."""
    assert isinstance(response, ProduceResponse)
    return b"\0\0\0\7\0" + encode(response, 9)


def test_requests_without_an_answer_are_told_apart() -> None:
    """Requests with acks=0 are counted with their bytes, but not in the latency."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        silent = produce_request(good_batch(1, timestamp_ms=1))
        assert isinstance(silent, ProduceRequest)
        silent.acks = 0
        await client.send(bytes(frame(silent, 9)))
        await request(client, MetadataRequest(None), 9)
        found = await samples(world)
        assert found["odradek_requests_unanswered_total{api=Produce}"] == 1
        assert found["odradek_request_seconds_count{api=Produce}"] == 0
        assert found["odradek_request_bytes_total{api=Produce}"] > 0

    play_measured(script)


def test_a_request_that_waits_has_the_latency_of_its_wait() -> None:
    """The latency of a parked Fetch includes its wait. So does the latency of a response behind it on the same
    connection."""

    async def script(world: World, connect: Connect) -> None:
        client, other = await connect(), await connect()
        await create_topic(client)
        before = await samples(world)
        parked = fetch_request(0, wait_ms=3000)
        await client.send(bytes(frame(parked, 12)) + bytes(frame(MetadataRequest(None), 9)))
        await request(other, MetadataRequest(None), 10)
        await world.sleep(1)
        assert (await samples(world))["odradek_requests_waiting{}"] == 2
        await client.answer()
        await client.answer()
        found = await samples(world)
        assert found["odradek_requests_waiting{}"] == 0
        assert found["odradek_request_seconds_bucket{api=Fetch,le=2.5}"] == 0
        assert found["odradek_request_seconds_bucket{api=Fetch,le=5.0}"] == 1
        assert 3 <= found["odradek_request_seconds_sum{api=Fetch}"] < 3.1
        assert found["odradek_requests_delayed_total{api=Fetch}"] == 1
        assert found["odradek_requests_delayed_total{api=Metadata}"] == 1, (
            "it must wait behind the parked Fetch"
        )
        assert found["odradek_request_seconds_bucket{api=Metadata,le=0.001}"] == 1
        assert found["odradek_request_seconds_bucket{api=Metadata,le=5.0}"] == 2
        assert before["odradek_requests_waiting{}"] == 0

    play_measured(script)


def test_the_latencies_of_a_page_add_up() -> None:
    """In a latency histogram the buckets never decrease, and the last one equals the number of responses."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        for _ in range(20):
            await produce(client, good_batch(1, timestamp_ms=1))
        found = await samples(world)
        apis = {
            name[name.index("api=") + 4 : -1]
            for name in found
            if name.startswith("odradek_request_seconds_count")
        }
        assert {"Produce", "CreateTopics"} <= apis
        for api in sorted(apis):
            bounds = [*map(repr, LATENCY_BOUNDS_SECONDS), "+Inf"]
            buckets = [found[f"odradek_request_seconds_bucket{{api={api},le={bound}}}"] for bound in bounds]
            assert buckets == sorted(buckets)
            answered = sum(
                value
                for name, value in found.items()
                if name.startswith(f"odradek_requests_total{{api={api},")
            )
            assert buckets[-1] == answered == found[f"odradek_request_seconds_count{{api={api}}}"]

    play_measured(script, Weather(split_probability=0.5, short_send_probability=0.5))


def test_many_topics_share_the_totals() -> None:
    """Only the first topics by name have their own metrics. The totals include all topics."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        names = [f"topic-{number:03}" for number in range(TOPICS_MAX + 5)]
        topics = [CreatableTopic(name, 1, 1) for name in names]
        await request(client, CreateTopicsRequest(topics, 10_000), 5)
        found = await samples(world)
        while found["odradek_partitions{}"] < len(names):
            # Most logs are made after the answer (see `odradek.data_plane.disks.log_making`).
            await world.sleep(0.01)
            found = await samples(world)
        listed = [name for name in found if name.startswith("odradek_topic_log_bytes{")]
        assert listed == [f"odradek_topic_log_bytes{{topic={name}}}" for name in names[:TOPICS_MAX]]
        assert found["odradek_topics_unlisted{}"] == 5
        assert found["odradek_partitions{}"] == found["odradek_leaders{}"] == len(names)

    play_measured(script)


def test_a_connection_that_breaks_the_protocol_is_counted() -> None:
    """Each protocol error is counted."""

    async def script(world: World, connect: Connect) -> None:
        for _ in range(5):
            client = await connect()
            await client.send(b"\xff\xff\xff\xff")
            assert await client.is_closed()
        found = await samples(world)
        assert found["odradek_protocol_errors_total{}"] == 5
        assert found["odradek_connections_accepted_total{listener=PLAINTEXT}"] == 5

    play_measured(script)


def test_every_metric_is_documented() -> None:
    """docs/metrics.md has a row for every metric of the page, with its type and meaning, and for no other."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        rows = []
        for family in text_string_to_metric_families(await page(world)):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if name.startswith(OF_PARTS):
                continue
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            labels = NOT_ON_THIS_PAGE.get(name, labels)
            rows.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
        written = [
            line
            for line in DOCUMENT.read_text().splitlines()
            if line.startswith("| `odradek_") and line.count("|") > 4
        ]
        assert written == rows

    play_measured(script)


def test_the_format_survives_any_label() -> None:
    """Labels with quotes, backslashes, newlines or invalid UTF-8 are escaped so that a parser reads them back."""
    text = MetricsText()
    text.gauge("a", "Described.")
    wild = 'C:\\data "x"\n{y=1}'
    text.sample(1, path=wild)
    text.sample(2, path="\udcff")
    families = list(text_string_to_metric_families(text.render().decode()))
    assert [sample.labels["path"] for sample in families[0].samples] == [wild, "?"]


# -- HTTP -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (GET, 200),
        (b"GET /metrics?name[]=up HTTP/1.0\n\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../secret HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00 TLS hello\r\n\r\n", 400),
        (bytes(frame(MetadataRequest(None), 9)) + b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX, 431),
        (b"\0" * (REQUEST_BYTES_MAX + 1), 400),
        (bytes(frame(MetadataRequest(None), 9)), 400),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else str(value),
)
def test_http_answers(data: bytes, status: int) -> None:
    """Every HTTP request, in pieces of any size, gets the page or the right error status. The node keeps running."""

    async def script(world: World, connect: Connect) -> None:
        answer = await http(world, data)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert (await page(world)).startswith("# HELP odradek_info ")
        assert (await request(await connect(), MetadataRequest(None), 9)).brokers

    play_measured(
        script, Weather(split_probability=0.3, short_recv_probability=0.3, short_send_probability=0.3)
    )


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\n\r\n"])
def test_a_request_ends_at_its_empty_line(end: bytes) -> None:
    """What follows the empty line is no header, and each kind of line end is understood."""

    async def script(world: World, connect: Connect) -> None:
        ask = b"GET /metrics HTTP/1.1\r\nHost: server" + end
        answer = await http(world, ask + b"Accept: application/openmetrics-text\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain;")

    play_measured(script)


def test_head_has_no_body() -> None:
    """HEAD returns only the headers of a GET (RFC 9110, section 9.3.2)."""

    async def script(world: World, connect: Connect) -> None:
        answer = await http(world, GET.replace(b"GET", b"HEAD"))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n")

    play_measured(script)


def test_peers_that_do_not_ask_are_closed() -> None:
    """A connection that sends no request is closed after a time limit, and so is one with an unfinished request."""

    async def script(world: World, connect: Connect) -> None:
        network = world.node_env("client").network
        silent = [await network.connect("server", PORT) for _ in range(CONNECTIONS_MAX)]
        await send(silent[0], GET[:-2])
        began = world.now
        for conn in silent:
            assert await read_to_end(conn) == b""
        assert ASK_SECONDS_MAX <= world.now - began + 1 < CONNECTION_SECONDS_MAX

    play_measured(script)


def test_who_holds_places_keeps_nobody_out() -> None:
    """If one address uses all connections for metrics, its silent connections are closed. Newcomers are served at
    once."""

    async def script(world: World, connect: Connect) -> None:
        stranger = world.node_env("stranger").network
        began = world.now
        silent = [await stranger.connect("server", PORT) for _ in range(3 * CONNECTIONS_MAX)]
        for _ in range(3):
            assert (await http(world, GET)).startswith(b"HTTP/1.1 200 ")
        assert world.now - began < ASK_SECONDS_MAX
        for conn in silent[: 2 * CONNECTIONS_MAX]:
            assert await read_to_end(conn) == b""

    play_measured(script)


def test_names_are_shown_where_the_file_asks_for_them() -> None:
    """By default topics, users and client ids do not appear on the public page. The totals do."""

    async def script(world: World, connect: Connect) -> None:
        await create_topic(await connect())
        text = await page(world)
        found = parsed(text)
        assert "topic=" not in text
        assert found["odradek_topics{}"] == found["odradek_topics_unlisted{}"] == 1
        assert "odradek_log_bytes{}" in found

    play(script, odradek_metrics_listener=LISTENER)


def test_a_port_that_is_taken_stops_the_start() -> None:
    """If the metrics port is in use, the start fails with one line that names the port and its purpose."""

    async def script(world: World, connect: Connect) -> None:
        raise AssertionError("the node started although its metrics port is in use")

    with pytest.raises(NodeCannotStart, match="cannot listen on server:9092 for metrics: "):
        play(script, odradek_metrics_listener="server:9092")


def test_a_figure_that_cannot_be_read_ends_nothing() -> None:
    """A bug while the page is made gives status 500 and a logged traceback. The next scrape works."""
    world, log = World(1, Weather()), KeptLog()
    pages: list[bytes | None] = [None, b"a 1\n"]

    def render(form: PageForm) -> Slices[bytes]:
        found = pages.pop(0)
        yield
        assert found is not None
        return found

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            env = world.node_env("server")
            server = MetricsServer(
                env.network.listen("", PORT),
                clock=env.clock,
                tasks=tasks,
                log=log,
                pages=PageMaker(env, log, render),
            )
            tasks.start_soon(server.accept_loop)
            assert (await http(world, GET)).startswith(b"HTTP/1.1 500 ")
            assert log.events == ["metrics.bug"]
            assert (await http(world, GET)).endswith(b"\r\n\r\na 1\n")
            pages.append(None)
            answer = await http(world, GET.replace(b"GET", b"HEAD"))
            assert answer.startswith(b"HTTP/1.1 500 ")
            assert answer.endswith(b"\r\n\r\n"), "the answer to HEAD has a body"
            server.close()

    world.run(main)


def test_a_bug_in_an_exchange_ends_its_connection() -> None:
    """A bug beside the page closes this connection with a logged traceback. The next request is answered."""
    world, log = World(1, Weather()), KeptLog()
    reasons: list[str | None] = [None]

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            env = world.node_env("server")
            server = MetricsServer(
                env.network.listen("", PORT),
                clock=env.clock,
                tasks=tasks,
                log=log,
                pages=PageMaker(env, log, lambda _: iter(())),  # type: ignore[arg-type,return-value]
                unready=lambda: reasons.pop(),
            )
            tasks.start_soon(server.accept_loop)
            ready = GET.replace(b"/metrics", b"/ready")
            assert (await http(world, ready)).endswith(b"ready\n")
            assert await http(world, ready) == b""
            assert log.events == ["metrics.bug"]
            assert (await http(world, GET.replace(b"/metrics", b"/healthz"))).endswith(b"ok\n")
            server.close()

    world.run(main)


class DearPages:
    """An environment with a clock that advances by a fixed time for each page."""

    def __init__(self, env: Any, seconds: float) -> None:
        self._env = env
        self._clock: Clock = env.clock
        self._seconds = seconds
        self._spent = 0.0
        self.made: list[float] = []

    @property
    def clock(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._spent

    async def sleep_until(self, deadline: float) -> None:
        await self._clock.sleep_until(deadline - self._spent)

    def timeout_at(self, deadline: float) -> Any:
        return self._clock.timeout_at(deadline - self._spent)

    def render(self, form: PageForm) -> Slices[bytes]:
        self.made.append(self.monotonic())
        number = len(self.made)
        for _ in range(2):
            yield
            self._spent += self._seconds / 2
        return b"page %d\n" % number


def test_pages_take_a_twelfth_of_the_loop() -> None:
    """After each page, other work gets eleven times the page's time. Scrapes that wait meanwhile share the next page."""
    world, seconds = World(1, Weather()), 0.1

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            env = world.node_env("server")
            pages, log = DearPages(env, seconds), KeptLog()
            listener = env.network.listen("", PORT)
            costly: Any = pages
            maker = PageMaker(costly, log, pages.render)
            server = MetricsServer(listener, clock=costly, tasks=tasks, log=log, pages=maker)
            tasks.start_soon(server.accept_loop)
            assert (await http(world, GET)).endswith(b"page 1\n")
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append(await http(world, GET))

            async with trio.open_nursery() as crowd:
                for _ in range(CONNECTIONS_MAX // 2):
                    crowd.start_soon(ask)
            assert {answer.rpartition(b"\r\n\r\n")[2] for answer in answers} == {b"page 2\n"}
            assert (await http(world, GET)).endswith(b"page 3\n")
            first, second, third = pages.made
            assert min(second - first, third - second) >= (OTHERS_SHARE + 1) * seconds - 1e-6
            assert maker.costs.count == 3
            assert maker.costs.seconds == pytest.approx(3 * seconds)
            server.close()

    world.run(main)


# -- complaints -----------------------------------------------------------------------------------------------------


class Lines:
    """A log that records its lines."""

    def __init__(self) -> None:
        self.told: list[tuple[object, object]] = []

    def warning(self, event: str, **values: object) -> None:
        assert event == "connection.protocol_error"
        self.told.append((values["peer"], values.get("count", 1)))


def test_one_line_per_second_and_peer() -> None:
    """A peer's first protocol error is logged at once. Errors in the same second are counted in a later line, and none
    is lost."""
    log = Lines()
    complaints = Complaints(log)

    def complain(now: float, peer: str) -> None:
        complaints.protocol_error(now, "size -1", peer=peer, client_id=None)

    for now in (10.0, 10.1, 10.9):
        complain(now, "a")
    complain(10.5, "b")
    assert log.told == [("a", 1), ("b", 1)]
    complain(11.2, "a")
    assert log.told[2:] == [("a", 3)], "the count must include the two errors held back"
    complain(11.3, "a")
    complaints.log_held_back(11.6)
    assert log.told[3:] == [], "nothing is due yet for a, and b has no more errors"
    complaints.log_held_back(12.2)
    assert log.told[3:] == [("a", 1)]
    complain(12.3, "b")
    assert log.told[4:] == [("b", 1)], "b must count as a new peer"
    assert complaints.protocol_errors == sum(int(str(count)) for _, count in log.told)


def test_complaints_of_many_peers_take_bounded_memory() -> None:
    """If more than a thousand peers cause errors in a second, the further peers share one line, so memory stays
    bounded."""
    log = Lines()
    complaints = Complaints(log)
    for number in range(3 * PEERS_MAX):
        complaints.protocol_error(1.0, "size -1", peer=f"10.0.{number >> 8}.{number & 255}", client_id=None)
    assert len(log.told) == PEERS_MAX + 1
    complaints.log_held_back(2.0)
    assert log.told[-1] == ("others", 2 * PEERS_MAX - 1)
    complaints.log_held_back(3.0)
    complaints.protocol_error(3.0, "size -1", peer="10.9.9.9", client_id=None)
    assert log.told[-1] == ("10.9.9.9", 1), "the peers of the last second must be forgotten"
