"""Kafka's time limits for a broker that reaches no controller: at its start, with a failed directory, and at its stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.env.ports import ConnectionLost, Env
from odradek.node.broker_lifecycle import BrokerLifecycle, ControllerOutOfReach
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.part_settings import lifecycle_settings
from odradek.node.node import NodeFailed
from odradek.node.run_node import run_node
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from odradek.wire.messages.broker_registration import BrokerRegistrationResponse
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.lone_node import SETTINGS
from testkit.virtual import format_disks
from tests.cluster.registering import registering_broker

FAILED = b"F" * 16


class Controller:
    """A stub controller. It registers the broker and answers heartbeats unless `is_deaf` is true.

    It never allows a shutdown.
    """

    leader_epoch = 1

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.is_deaf = False
        self.heard_at: list[float] = []
        """The arrival times of heartbeats, answered or not."""
        self.offline_dirs: list[bytes] = []

    async def request(self, message: Any, deadline: float) -> Any:
        if isinstance(message, BrokerHeartbeatRequest):
            self.heard_at.append(self._clock.monotonic())
        if self.is_deaf:
            await self._clock.sleep_until(deadline)
            raise ConnectionLost("nobody leads")
        if isinstance(message, BrokerHeartbeatRequest):
            self.offline_dirs = message.offline_log_dirs
            return BrokerHeartbeatResponse(0, ErrorCode.NONE, True, False, False)
        return BrokerRegistrationResponse(0, ErrorCode.NONE, 71)


Script = Callable[[World, Any, BrokerLifecycle, Controller], Awaitable[None]]


def play(script: Script, *, deaf: bool = False, **settings: str) -> tuple[str, float]:
    """Run a broker's lifecycle. Return why it ended ('' if the script ended first), and after how many seconds."""
    world = World(1, Weather())
    config = NodeConfig.from_properties(
        SETTINGS | {key.replace("_", "."): value for key, value in settings.items()}
    )

    async def main() -> tuple[str, float]:
        env = world.node_env("broker")
        controller = Controller(env.clock)
        controller.is_deaf = deaf
        directory = SimpleNamespace(path="/one", directory_id=FAILED, offline_reason=None)
        broker = registering_broker(env, controller, [directory])
        lifecycle = BrokerLifecycle(
            broker,
            listeners=[],
            rack=None,
            previous_broker_epoch=-1,
            settings=lifecycle_settings(config),
            log=KeptLog(),
        )
        why, ended_at = "", 0.0

        async def run() -> None:
            nonlocal why, ended_at
            try:
                await lifecycle.run()
            except ControllerOutOfReach as error:
                why, ended_at = str(error), env.clock.monotonic()

        began_at = env.clock.monotonic()
        world.tasks.start_soon(run)
        await script(world, broker, lifecycle, controller)
        return why, ended_at - began_at

    return world.run(main)


@pytest.mark.parametrize(
    ("settings", "limit"), [({}, 60.0), ({"initial_broker_registration_timeout_ms": "5000"}, 5.0)]
)
def test_a_broker_that_cannot_register_in_time_ends(settings: dict[str, str], limit: float) -> None:
    """A broker that cannot register within `initial.broker.registration.timeout.ms` ends, so that a supervisor
    notices."""

    async def script(world: World, _: Any, lifecycle: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(limit + 5)
        assert lifecycle.broker_epoch == -1

    why, seconds = play(script, deaf=True, **settings)
    assert "initial.broker.registration.timeout.ms" in why
    assert limit <= seconds < limit + 3


def test_a_broker_that_has_registered_waits_for_controllers_for_ever() -> None:
    """A registered broker waits for controllers without limit: the timeout is only for the first registration."""

    async def script(world: World, _: Any, lifecycle: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(1)
        controller.is_deaf = True
        await world.sleep(300)
        assert lifecycle.broker_epoch == 71

    assert play(script)[0] == ""


def test_a_broker_serves_when_the_metadata_shows_it_unfenced() -> None:
    """The metadata alone can show a broker that it is unfenced, even if the heartbeat is not answered (seed 441021). An
    older registration or a fenced one does not count."""

    async def script(world: World, broker: Any, lifecycle: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(1)
        controller.is_deaf = True
        for epoch, fenced in ((70, False), (71, True)):
            broker.image.brokers[1] = SimpleNamespace(epoch=epoch, fenced=fenced)
            lifecycle.metadata_applied()
            assert not lifecycle.is_unfenced.is_set()
        broker.image.brokers[1] = SimpleNamespace(epoch=71, fenced=False)
        lifecycle.metadata_applied()
        assert lifecycle.is_unfenced.is_set()

    assert play(script)[0] == ""


def test_a_failed_directory_is_told_in_time_or_the_broker_ends() -> None:
    """A broker that cannot report a failed directory within `log.dir.failure.timeout.ms` ends, so that others lead."""

    async def script(world: World, broker: Any, _: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(10)
        controller.is_deaf = True
        broker.log_dirs[0].offline_reason = "it burnt"
        await world.sleep(60)

    why, seconds = play(script, log_dir_failure_timeout_ms="20000")
    assert "/one has failed (it burnt)" in why
    assert "log.dir.failure.timeout.ms" in why
    assert 30 <= seconds < 36


def test_a_failed_directory_that_was_told_of_ends_nobody() -> None:
    """A broker that has reported a failed directory keeps running, even if controllers become unreachable later."""

    async def script(world: World, broker: Any, _: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(10)
        broker.log_dirs[0].offline_reason = "it burnt"
        await world.sleep(10)
        assert controller.offline_dirs == [FAILED]
        controller.is_deaf = True
        await world.sleep(300)

    assert play(script)[0] == ""


@pytest.mark.parametrize(
    ("settings", "heartbeats", "pause"),
    [
        ({}, 2, 0.2),
        ({"controlled_shutdown_max_retries": "0"}, 1, 0.2),
        ({"controlled_shutdown_max_retries": "4", "controlled_shutdown_retry_backoff_ms": "3000"}, 5, 3.0),
    ],
)
def test_a_stopping_broker_asks_as_often_as_it_is_told(
    settings: dict[str, str], heartbeats: int, pause: float
) -> None:
    """A stopping broker asks a silent controller `controlled.shutdown.max.retries` times, after each
    `.retry.backoff.ms`."""

    async def script(world: World, _: Any, lifecycle: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(10)
        controller.is_deaf = True
        controller.heard_at.clear()
        await lifecycle.shut_down()
        assert lifecycle.may_shut_down.is_set()
        asked = controller.heard_at
        assert len(asked) == heartbeats
        between = [after - before for before, after in pairwise(asked)]
        assert between == pytest.approx([pause + 1.0] * (heartbeats - 1), abs=0.1)

    play(script, **settings)


def test_a_broker_that_hands_nothing_over_stops_at_once() -> None:
    """With `controlled.shutdown.enable=false` a broker stops without contacting the controller."""

    async def script(world: World, _: Any, lifecycle: BrokerLifecycle, controller: Controller) -> None:
        await world.sleep(10)
        controller.heard_at.clear()
        began_at = world.now
        await lifecycle.shut_down()
        assert world.now == began_at
        assert not lifecycle.may_shut_down.is_set()
        assert controller.heard_at == []

    play(script, controlled_shutdown_enable="false")


def test_a_node_that_finds_no_leader_in_time_ends() -> None:
    """A broker that finds no quorum leader ends after the timeout of its registration. One log line names the
    reason."""
    world = World(1, Weather())
    config = NodeConfig.from_properties(
        SETTINGS
        | {
            "process.roles": "broker",
            "listeners": "PLAINTEXT://server:9092",
            "controller.quorum.voters": "7@nobody:9093",
            "initial.broker.registration.timeout.ms": "20000",
        }
    )
    ended: list[tuple[str, float]] = []

    async def serve(env: Env) -> None:
        format_disks(env, 1)
        began_at = env.clock.monotonic()
        try:
            await run_node(config, env, log=KeptLog())
        except* NodeFailed as group:
            ended.append((str(group.exceptions[0]), env.clock.monotonic() - began_at))

    async def main() -> None:
        world.start("server", serve)
        await world.sleep(60)
        [(why, seconds)] = ended
        assert "initial.broker.registration.timeout.ms" in why
        assert 20 <= seconds < 23

    world.run(main)
