"""The client's core with a fake broker, without IO. Virtual time moves only when nothing else can happen."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore, Connect, Send
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.errors import (
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    ConnectionBroken,
    RequestTimedOut,
    UnsupportedByBroker,
)
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode, RemoteProtocolError
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.fetch import FetchRequest
from odradek.wire.messages.metadata import MetadataResponse
from tests.client.fake_broker import HANG_UP, SILENCE, FakeBroker, Wire
from tests.schedule import examples

ADDRESS = ("fake", 9092)


def make(
    broker: FakeBroker | None = None, bootstrap: list[tuple[str, int]] | None = None, **config: Any
) -> tuple[ClientCore, Wire, FakeBroker]:
    """Make a core, its wire and the broker that listens at ADDRESS."""
    broker = broker or FakeBroker()
    core = ClientCore(bootstrap or [ADDRESS], ClientConfig(**config), random.Random(1))
    return core, Wire(core, {ADDRESS: broker}), broker


def calls(core: ClientCore, count: int) -> Operation[list[Any]]:
    """Start `count` requests at once, and return their outcomes."""
    deadline = core.now + 30
    started = [core.call(DescribeClusterRequest(), deadline=deadline) for _ in range(count)]
    yield Wait(started)
    return [call.error or call.response for call in started]


def sleep(core: ClientCore, seconds: float) -> Operation[None]:
    """Let virtual time pass."""
    yield Wait(until=core.now + seconds)


def test_a_request_opens_a_connection_negotiates_and_is_answered() -> None:
    """The first request of a connection is ApiVersions (KIP-35). Other requests are sent after its answer."""
    core, wire, _ = make()
    response = wire.run(request(core, DescribeClusterRequest(), timeout=5))
    assert response.cluster_id == "fake-cluster"
    assert wire.connects == [ADDRESS]


def test_a_broker_that_knows_only_old_api_versions_is_asked_again_in_its_version() -> None:
    """A broker rejects the version of ApiVersions with error 35.

    The client repeats the request in a version that the broker names (KIP-511).
    """
    broker = FakeBroker()
    broker.versions[ApiKey.API_VERSIONS] = (0, 2)
    core, wire, _ = make(broker)
    assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1


def test_the_highest_common_version_is_used() -> None:
    """Requests have the highest version that the client and the broker share."""
    broker = FakeBroker()
    seen: list[int] = []
    broker.versions[ApiKey.DESCRIBE_CLUSTER] = (0, 1)
    answer = broker.answer
    broker.answer = lambda event: (seen.append(event.api_version), answer(event))[1]  # type: ignore[method-assign,func-returns-value]  # a spy
    core, wire, _ = make(broker)
    wire.run(request(core, DescribeClusterRequest(), timeout=5))
    assert seen == [api_versions(ApiKey.API_VERSIONS)[1], 1]


def test_a_request_without_a_common_version_is_refused_here() -> None:
    """If no version is shared, the call fails before anything is sent. The error says which API the broker lacks."""
    broker = FakeBroker()
    del broker.versions[ApiKey.FETCH]
    core, wire, _ = make(broker)
    with pytest.raises(UnsupportedByBroker, match="FETCH"):
        wire.run(request(core, FetchRequest(), timeout=5))
    assert broker.requests == []


def test_a_client_that_never_had_contact_fails_at_once() -> None:
    """With `fail_fast`, a call fails at once if every bootstrap address refuses the connection."""
    core, wire, _ = make(bootstrap=[("nobody", 1), ("nowhere", 2)])
    with pytest.raises(
        BrokerUnavailable, match=r"nobody:1: Connection refused; .*nowhere:2: Connection refused"
    ):
        wire.run(request(core, DescribeClusterRequest(), timeout=5))
    assert sorted(wire.connects) == [("nobody", 1), ("nowhere", 2)]
    assert wire.now < 1


def test_without_fail_fast_it_waits_for_the_broker_until_the_deadline() -> None:
    """Without `fail_fast`, a call waits for a broker until its deadline.

    The simulator needs this, since its clients start before the brokers.
    """
    core, wire, broker = make(fail_fast=False)
    del wire.brokers[ADDRESS]
    with pytest.raises(BrokerUnavailable):
        wire.run(request(core, DescribeClusterRequest(), timeout=5))
    assert 4 < wire.now <= 5
    wire.brokers[ADDRESS] = broker
    assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1


def test_the_second_bootstrap_address_is_tried_when_the_first_is_dead() -> None:
    """If a bootstrap address is dead, another one of the list is used."""
    core, wire, _ = make(bootstrap=[("dead", 1), ADDRESS, ("dead", 2)])
    for _ in range(3):
        assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1


def test_a_broker_that_went_away_is_waited_for() -> None:
    """A broker was connected once, and now refuses. Calls are retried with backoff until their deadline."""
    core, wire, broker = make()
    wire.run(refresh_metadata(core, [], timeout=5))
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(HANG_UP)
    del wire.brokers[ADDRESS]
    task = core.start(request(core, DescribeClusterRequest(), timeout=10), wire.now)
    wire.settle()
    while not task.done:
        deadline = core.next_deadline()
        assert deadline is not None
        wire.now = deadline
        if wire.now > 2:
            wire.brokers[ADDRESS] = broker
        core.tick(wire.now)
        wire.settle()
    assert task.result().controller_id == 1
    assert 2 < wire.now < 4, f"the backoff of at most a second, with jitter, ends at {wire.now}"


def test_a_request_that_must_not_be_repeated_is_not() -> None:
    """A connection is lost under a request that must not be repeated.

    The call fails, since the broker may have performed it.
    """
    core, wire, broker = make()
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(HANG_UP)
    with pytest.raises(ConnectionBroken):
        wire.run(request(core, DescribeClusterRequest(), timeout=5, repeat_after_loss=False))
    assert len(broker.requests) == 1
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(HANG_UP)
    wire.run(request(core, DescribeClusterRequest(), timeout=5))
    assert len(broker.requests) == 3


def test_an_answer_that_never_comes_ends_the_connection_and_the_call() -> None:
    """An answer never comes. The connection is closed, as later answers can only follow the missing one."""
    core, wire, broker = make(request_timeout=3.0)
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(SILENCE)
    first, second = wire.run(calls(core, 2))
    assert isinstance(first, RequestTimedOut)
    assert isinstance(second, RequestTimedOut)
    assert wire.now == 3.0
    assert wire.ends == {}
    assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1


def test_a_connection_that_is_never_established_times_out() -> None:
    """A connection attempt gets no reaction from the network. It fails at its timeout."""
    core, wire, _ = make(connect_timeout=2.0)
    wire._connect = lambda connection_id, address: None  # type: ignore[method-assign]  # a double
    with pytest.raises(BrokerUnavailable, match=r"within 2\.1 s"):
        wire.run(request(core, DescribeClusterRequest(), timeout=5))
    assert 0.8 * 2.0 <= wire.now <= 1.2 * 2.0


def test_the_time_for_an_attempt_to_connect_grows_and_begins_anew_after_a_success() -> None:
    """The setup timeout doubles from `socket.connection.setup.timeout.ms` to its maximum while attempts fail (KIP-601).

    It is jittered, and a success resets it.
    """
    core, wire, _ = make(connect_timeout=1.0, connect_timeout_max=5.0, fail_fast=False)
    connect = wire._connect
    attempts: list[float] = []

    def silent(connection_id: int, address: tuple[str, int]) -> None:
        attempts.append(wire.now)

    def lasted() -> list[float]:
        """Return the time from each attempt to the next: its timeout and the backoff."""
        wire._connect = silent  # type: ignore[method-assign]  # a double
        with pytest.raises(ClientError):
            wire.run(refresh_metadata(core, [], timeout=60))
        found = [end - begin for begin, end in pairwise(attempts)]
        attempts.clear()
        return found

    backoffs = 2.5
    for wanted, found in zip([1.0, 2.0, 4.0, 5.0, 5.0], lasted(), strict=False):
        assert 0.8 * wanted <= found <= 1.2 * wanted + backoffs
    wire._connect = connect  # type: ignore[method-assign]
    wire.run(sleep(core, 10.0))
    wire.run(refresh_metadata(core, [], timeout=60))
    wire.ends.clear()
    for connection_id in list(core._by_id):
        core.connection_lost(connection_id, "reset", wire.now)
    assert lasted()[0] <= 1.2 + backoffs


def test_a_connection_without_calls_is_closed_and_opened_again_when_it_is_needed() -> None:
    """An idle connection is closed after `connections.max.idle.ms`, and opened again for the next call.

    A call in flight keeps its connection open.
    """
    core, wire, broker = make(connection_idle_max=9.0)
    wire.run(request(core, DescribeClusterRequest(), timeout=5))
    wire.run(sleep(core, 8.9))
    assert len(wire.ends) == 1
    wire.run(sleep(core, 0.2))
    assert wire.ends == {}
    assert core.next_deadline() is None
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(SILENCE)
    with pytest.raises(RequestTimedOut):
        wire.run(request(core, DescribeClusterRequest(), timeout=20, repeat_after_loss=False))
    assert wire.now >= 28.0
    assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1


NEW = ("new", 9092)


def moved(**config: Any) -> tuple[ClientCore, Wire, FakeBroker]:
    """Make a client that knows only a broker that does not answer any more.

    The bootstrap address leads to a new broker.
    """
    core, wire, broker = make(bootstrap=[NEW], request_timeout=5.0, fail_fast=False, **config)
    wire.brokers = {NEW: broker, ADDRESS: broker}
    wire.run(refresh_metadata(core, [], timeout=5))
    assert core.cluster.brokers[1].host == "fake"
    hung = FakeBroker()
    hung.trouble[ApiKey.METADATA].extend([SILENCE] * 1000)
    fresh = FakeBroker(*NEW)
    wire.brokers = {NEW: fresh, ADDRESS: hung}
    for connection_id in list(core._by_id):
        core.connection_lost(connection_id, "reset", wire.now)
    wire.ends.clear()
    return core, wire, fresh


def test_without_metadata_for_too_long_the_bootstrap_addresses_are_asked() -> None:
    """Known brokers accept connections but answer nothing.

    After `metadata.recovery.rebootstrap.trigger.ms` the bootstrap addresses are used (KIP-1102).
    """
    core, wire, _ = moved(rebootstrap_trigger=60.0)
    began = wire.now
    wire.run(refresh_metadata(core, [], timeout=200))
    assert core.cluster.brokers[1].host == "new"
    assert 60.0 <= wire.now - began < 70.0


def test_without_recovery_only_known_brokers_are_asked() -> None:
    """With `metadata.recovery.strategy=none` (as before KIP-899), only known brokers are used.

    Calls fail if all known brokers hang or refuse the connection.
    """
    core, wire, _ = moved(rebootstrap=False, rebootstrap_trigger=60.0)
    with pytest.raises(RequestTimedOut):
        wire.run(refresh_metadata(core, [], timeout=200))
    del wire.brokers[ADDRESS]
    with pytest.raises(BrokerUnavailable, match="fake"):
        wire.run(refresh_metadata(core, [], timeout=20))
    assert core.cluster.brokers[1].host == "fake"


def test_brokers_that_cannot_be_reached_give_way_to_the_bootstrap_addresses() -> None:
    """All known brokers refuse connections. The bootstrap addresses are used at once, without waiting for the trigger.

    This is `metadata.recovery.strategy=rebootstrap` (KIP-899).
    """
    core, wire, _ = moved()
    del wire.brokers[ADDRESS]
    wire.run(refresh_metadata(core, [], timeout=20))
    assert core.cluster.brokers[1].host == "new"


def test_a_broker_may_ask_for_the_bootstrap_addresses() -> None:
    """REBOOTSTRAP_REQUIRED in a Metadata answer sends the client to the bootstrap addresses (KIP-1102)."""
    core, wire, _ = moved()
    asking = FakeBroker()
    asking.trouble[ApiKey.METADATA].append(MetadataResponse(error_code=int(ErrorCode.REBOOTSTRAP_REQUIRED)))
    wire.brokers[ADDRESS] = asking
    wire.run(refresh_metadata(core, [], timeout=20))
    assert core.cluster.brokers[1].host == "new"


def test_no_more_than_in_flight_max_requests_are_unanswered() -> None:
    """At most `in_flight_max` requests of a connection are unanswered. Others are sent as answers come."""
    core, wire, broker = make(in_flight_max=2)
    task = core.start(calls(core, 7), 0.0)
    sent: list[int] = []
    while effects := core.effects():
        for effect in effects:
            if isinstance(effect, Connect):
                wire._connect(effect.connection_id, (effect.host, effect.port))
            elif isinstance(effect, Send):
                before = len(broker.requests)
                wire._send(effect.connection_id, effect.data)
                sent.append(len(broker.requests) - before)
    assert [response.controller_id for response in task.result()] == [1] * 7
    assert max(sent) == 2


def test_a_call_too_many_is_refused() -> None:
    """A call is refused if the queue of waiting calls is full."""
    core, wire, _ = make(in_flight_max=1, calls_waiting_max=3)
    outcomes = wire.run(calls(core, 5))
    assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 2


def test_a_throttled_client_keeps_still() -> None:
    """After an answer with `throttle_time_ms` the client sends nothing on this connection for that time (KIP-219)."""
    core, wire, broker = make(in_flight_max=1)
    broker.throttle_ms = 500
    wire.run(calls(core, 3))
    assert wire.now == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak Kafka's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
    ],
)
def test_garbage_instead_of_kafkas_protocol_is_named(greeting: bytes, reason: str) -> None:
    """A server at the bootstrap address does not speak Kafka's protocol.

    The error says so. It names HTTP if the server speaks HTTP, as our metrics port does.
    """
    core, wire, _ = make()

    def greet(connection_id: int, data: bytes | bytearray) -> None:
        core.receive_data(connection_id, greeting, wire.now)

    wire._send = greet  # type: ignore[method-assign]  # a double
    with pytest.raises((BrokerUnavailable, ConnectionBroken), match=reason):
        wire.run(request(core, DescribeClusterRequest(), timeout=1))


def test_a_refusal_to_negotiate_is_an_error_of_the_connection() -> None:
    """A broker answers UNSUPPORTED_VERSION to both versions of ApiVersions.

    The call fails, and ApiVersions is not repeated for ever.
    """
    broker = FakeBroker()
    broker.versions[ApiKey.API_VERSIONS] = (-1, -1)
    core, wire, _ = make(broker)
    with pytest.raises((BrokerUnavailable, RemoteProtocolError)):
        wire.run(request(core, DescribeClusterRequest(), timeout=1))


def test_reports_about_dead_attempts_are_ignored() -> None:
    """Events of a closed connection are ignored.

    Connection ids are never reused, so an event always belongs to its own connection.
    """
    core, wire, _broker = make()
    wire.run(refresh_metadata(core, [], timeout=5))
    (old,) = wire.ends
    core.connection_lost(old, "reset", wire.now)
    core.receive_data(old, b"late", wire.now)
    core.connection_lost(old, "again", wire.now)
    core.connect_failed(old, "again", wire.now)
    core.connected(old, wire.now)
    assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1


def test_close_ends_what_is_under_way() -> None:
    """`close` ends all operations under way, and later ones are refused."""
    core, wire, broker = make()
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(SILENCE)
    task = core.start(request(core, DescribeClusterRequest(), timeout=5), 0.0)
    wire.settle()
    core.close()
    wire.settle()
    assert wire.ends == {}
    with pytest.raises(ClientClosed):
        task.result()
    with pytest.raises(ClientClosed):
        core.start(request(core, DescribeClusterRequest(), timeout=5), 0.0)


def test_an_abandoned_operation_leaves_the_connection_usable() -> None:
    """An operation is abandoned. Its answer is dropped, and the connection remains usable."""
    core, wire, _ = make()
    task = core.start(request(core, DescribeClusterRequest(), timeout=5), 0.0)
    core.abandon(task)
    wire.settle()
    assert wire.run(request(core, DescribeClusterRequest(), timeout=5)).controller_id == 1
    assert core.statistics() == {"connections": 1, "calls_in_flight": 0, "calls_waiting": 0, "operations": 0}


def test_an_unknown_error_code_is_an_unknown_server_error() -> None:
    """An error code that this client does not know becomes UNKNOWN_SERVER_ERROR."""
    core, wire, broker = make()
    broker.add_topic("t")
    broker.trouble[ApiKey.METADATA].append(9999)
    cluster = wire.run(refresh_metadata(core, ["t"], timeout=5))
    assert cluster.topic_errors == {"t": ErrorCode.UNKNOWN_SERVER_ERROR}


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 1 << 30), count=st.integers(1, 12), pipeline=st.integers(1, 6))
def test_answers_arrive_in_pieces_of_any_size(seed: int, count: int, pipeline: int) -> None:
    """Answers are decoded correctly however TCP splits the bytes."""
    core, wire, _ = make(in_flight_max=pipeline)
    rng = random.Random(seed)
    wire.piece_sizes = lambda: rng.choice((1, 2, 3, 5, 50, 1000))
    assert [response.cluster_id for response in wire.run(calls(core, count))] == ["fake-cluster"] * count


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_trouble_loses_a_call_or_answers_it_twice(data: st.DataObject) -> None:
    """The broker makes trouble of every kind.

    Every call ends exactly once, in an answer or an error (`Call` asserts that).
    """
    core, wire, broker = make(request_timeout=4.0)
    trouble = st.sampled_from([HANG_UP, SILENCE, 0, int(ErrorCode.UNKNOWN_SERVER_ERROR)])
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].extend(data.draw(st.lists(trouble, max_size=6)))
    outcomes = []
    for _ in range(3):
        outcomes += wire.run(calls(core, data.draw(st.integers(1, 6))))
        if data.draw(st.booleans()):
            for connection_id in list(wire.ends):
                core.connection_lost(connection_id, "reset", wire.now)
                del wire.ends[connection_id]
    assert None not in outcomes
    assert core.statistics()["calls_in_flight"] == core.statistics()["calls_waiting"] == 0
