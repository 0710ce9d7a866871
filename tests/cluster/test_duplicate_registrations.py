"""A broker waits for an old incarnation with its id: long enough if that one is dead, but not forever if it is alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.env.ports import ConnectionLost
from odradek.node.broker_lifecycle import (
    DUPLICATE_SESSIONS,
    BrokerLifecycle,
    LifecycleSettings,
    RegistrationRefused,
)
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from odradek.wire.messages.broker_registration import BrokerRegistrationResponse
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from tests.cluster.registering import registering_broker

SESSION_SECONDS = 9.0
EPOCH = 71
TAKEN = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class Controller:
    """A stub controller whose answer to a registration depends on the time. It allows each registered broker to stop."""

    def __init__(
        self, clock: Any, answer: Callable[[float], ErrorCode | None], leads_for_sessions: float = 1e9
    ) -> None:
        self._leads_for_sessions = leads_for_sessions
        self._clock = clock
        self._answer = answer
        self._begin = clock.monotonic()

    def elapsed_sessions(self) -> float:
        passed: float = self._clock.monotonic() - self._begin
        return passed / SESSION_SECONDS

    @property
    def leader_epoch(self) -> int:
        return int(self.elapsed_sessions() / self._leads_for_sessions)

    async def request(self, message: Any, deadline: float) -> Any:
        if isinstance(message, BrokerHeartbeatRequest):
            return BrokerHeartbeatResponse(0, ErrorCode.NONE, True, True, True)
        code = self._answer(self.elapsed_sessions())
        if code is None:
            await self._clock.sleep_until(deadline)
            raise ConnectionLost("nobody leads")
        return BrokerRegistrationResponse(0, code, EPOCH if code is ErrorCode.NONE else -1)


def outcome(
    answer: Callable[[float], ErrorCode | None], leads_for_sessions: float = 1e9
) -> tuple[int, float, str]:
    """Run a registration. Return the broker epoch (-1 if refused), the time in session timeouts, and the reason."""
    world = World(1, Weather())

    async def main() -> tuple[int, float, str]:
        env = world.node_env("broker")
        controller = Controller(env.clock, answer, leads_for_sessions)
        broker = registering_broker(env, controller)
        lifecycle = BrokerLifecycle(
            broker,
            listeners=[],
            rack=None,
            previous_broker_epoch=-1,
            settings=LifecycleSettings(
                session_timeout_ms=int(SESSION_SECONDS * 1000), initial_registration_ms=3_600_000
            ),
            log=KeptLog(),
        )
        why = ""
        try:
            await lifecycle.run()
        except RegistrationRefused as refused:
            why = str(refused)
        return lifecycle.broker_epoch, controller.elapsed_sessions(), why

    return world.run(main)


@pytest.mark.parametrize(
    "answer",
    [
        lambda at: TAKEN if at < 1.05 else ErrorCode.NONE,
        # The controller changes as the session ends. The new controller gives each broker a new session, even a dead
        # one (seed 2111).
        lambda at: TAKEN if at < 2.05 else ErrorCode.NONE,
        # There was no controller for a while, so the answers of the old one do not count any more.
        lambda at: None if 0.95 < at < 1.9 else TAKEN if at < 2.95 else ErrorCode.NONE,
        lambda at: None if int(at / 0.4) % 2 else TAKEN if at < 9 else ErrorCode.NONE,
    ],
    ids=["one session", "two sessions", "no answer between them", "often no answer"],
)
def test_a_dead_incarnation_is_waited_for(answer: Callable[[float], ErrorCode | None]) -> None:
    """A broker that restarts waits until the session of its own dead incarnation has ended."""
    epoch, _, why = outcome(answer)
    assert (epoch, why) == (EPOCH, "")


def test_each_controller_gives_the_dead_a_session() -> None:
    """Three controllers in a row each give the dead broker a new session (seed 300180); the restarted broker still
    waits."""
    epoch, _, why = outcome(lambda at: TAKEN if at < 3.3 else ErrorCode.NONE, leads_for_sessions=1.1)
    assert (epoch, why) == (EPOCH, "")


def test_a_live_one_is_not_waited_for_for_ever() -> None:
    """If the id is still taken after several sessions, the broker ends: another live broker has its id."""
    epoch, sessions, why = outcome(lambda at: TAKEN)
    assert epoch == -1
    assert "another running broker has the node.id 1" in why
    assert DUPLICATE_SESSIONS < sessions < DUPLICATE_SESSIONS + 0.5
