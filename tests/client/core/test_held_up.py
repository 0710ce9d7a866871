"""Delays that must not block a client: a slow resolver, a slow assignor, a silent coordinator, another thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import trio

from odradek import Consumer, Producer, TopicPartition
from odradek.client.consumer.assignors import Assignment, MemberSubscription
from odradek.client.errors import ClientError, RequestTimedOut
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.client.shells.blocking import Client
from odradek.wire.api import ApiKey
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.leave_group import LeaveGroupRequest
from sim.machine.world import World
from tests.client.consumer.consumers import fill
from tests.client.consumer.fake_group import GroupBroker
from tests.client.fake_broker import SILENCE, LoopbackBroker
from tests.client.shells.test_aio import PORT, serve

PATIENCE_SECONDS = 20.0


class SlowResolver:
    """A resolver that answers when `released` is set, or after `PATIENCE_SECONDS`."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = threading.Event()
        self.gave_up = False
        self._real = socket.getaddrinfo

    def __call__(self, *args: Any, **keys: Any) -> Any:
        self.asked.set()
        self.gave_up |= not self.released.wait(PATIENCE_SECONDS)
        return self._real(*args, **keys)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowResolver]:
    """The slow resolver, in place of the system's."""
    found = SlowResolver()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    yield found
    found.released.set()


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker that coordinates a group, and has records in topic `t`."""
    with LoopbackBroker(GroupBroker) as found:
        group = found.broker
        assert isinstance(group, GroupBroker)
        group.add_topic("t", 1)
        fill(group, 9)
        yield found


def test_a_slow_resolver_keeps_no_call_beyond_its_time(
    resolver: SlowResolver, broker: LoopbackBroker
) -> None:
    """The resolver hangs.

    Calls fail at their timeouts (`max.block.ms` for `send`), other clients go on, and the resolver's late answer is
    used.
    """
    servers = f"localhost:{broker.broker.port}"
    with Producer(bootstrap_servers=servers, max_block_ms=300, request_timeout_ms=300) as producer:
        with pytest.raises(ClientError):
            producer.send("t", b"x")
        assert resolver.asked.is_set()
        assert producer.metrics()["batches incomplete"] == 0
        with Client(f"127.0.0.1:{broker.broker.port}") as numeric:
            assert numeric.metadata(["t"]).topics
        with Client(servers, timeout_ms=200) as client, pytest.raises(RequestTimedOut):
            client.metadata(["t"])
        producer.close(0.1)
    assert not resolver.gave_up
    resolver.released.set()
    with Producer(bootstrap_servers=servers, max_block_ms=20_000) as producer:
        assert producer.send("t", b"x").result(PATIENCE_SECONDS).offset == 9


class Requests(list[Any]):
    """A broker's list of requests, which sets `beaten` at the second heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.beaten = threading.Event()
        self._beats = 0

    def append(self, request: Any) -> None:
        super().append(request)
        self._beats += isinstance(request, HeartbeatRequest)
        if self._beats == 2:
            self.beaten.set()


class SlowAssignor:
    """An assignor that runs until the broker has received two heartbeats."""

    name = "slow"
    cooperative = False

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.was_beaten = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        self.was_beaten = self._requests.beaten.wait(PATIENCE_SECONDS)
        return {members[0].member_id: [TopicPartition("t", 0)]}

    def user_data(self, generation: int) -> bytes | None:
        return None


def test_heartbeats_go_on_while_the_leader_assigns(broker: LoopbackBroker) -> None:
    """The group's leader runs a slow assignor. Its heartbeats continue, so that its session does not expire."""
    group = broker.broker
    assert isinstance(group, GroupBroker)
    group.requests = requests = Requests()
    assignor = SlowAssignor(requests)
    with Consumer(
        bootstrap_servers=broker.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
        partition_assignment_strategy=[assignor],
    ) as consumer:
        consumer.subscribe("t")
        assert len(consumer.poll(PATIENCE_SECONDS)) == 9
        assert assignor.was_beaten


def test_two_threads_on_one_consumer_are_told_at_once(broker: LoopbackBroker) -> None:
    """A consumer is used by two threads at a time.

    The second call raises, but `wakeup` and `statistics` work from any thread.
    """
    consumer = Consumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=50)
    consumer.assign([("t", 0)])
    consumer.seek_to_end()
    ends: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(PATIENCE_SECONDS)
        except ClientError as error:
            ends.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    told = 0
    while not told:
        assert time.monotonic() < deadline
        try:
            consumer.assignment()
        except RuntimeError:
            told += 1
    for call in (consumer.poll, consumer.commit, consumer.close, lambda: consumer.seek(("t", 0), 0)):
        with pytest.raises(RuntimeError, match="another thread"):
            call()
    assert consumer.statistics()["assigned_partitions"] == 1
    consumer.wakeup()
    thread.join()
    assert [type(end).__name__ for end in ends] == ["Wakeup"]
    consumer.close()


def test_two_tasks_that_poll_one_consumer_are_told_and_close_keeps_its_time() -> None:
    """Two tasks poll one consumer: the second call raises.

    `close(timeout)` limits the last commit and LeaveGroup together, even if neither is answered.
    """
    world = World(3)
    broker = GroupBroker("broker", PORT)
    broker.add_topic("t", 1)
    fill(broker, 9)

    async def main() -> None:
        world.start("broker", serve(broker))
        async with trio.open_nursery() as nursery:
            env = world.node_env("client")
            consumer = AsyncConsumer(
                env,
                nursery,
                bootstrap_servers=f"broker:{PORT}",
                group_id="g",
                auto_offset_reset="earliest",
                auto_commit_interval_ms=1_000_000,
            )
            consumer.subscribe("t")
            while not await consumer.poll(1.0):
                pass
            world.spawn(consumer.poll, 2.0)
            await world.sleep(0.1)
            with pytest.raises(RuntimeError, match="another task"):
                await consumer.poll(1.0)
            await world.sleep(3.0)
            broker.trouble[ApiKey.OFFSET_COMMIT].extend([SILENCE] * 100)
            broker.trouble[ApiKey.LEAVE_GROUP].append(SILENCE)
            began = env.clock.monotonic()
            await consumer.close(5.0)
            assert 4.0 <= env.clock.monotonic() - began <= 5.5
            nursery.cancel_scope.cancel()

    world.run(main)
    assert len(broker.asked(LeaveGroupRequest)) <= 1
