"""The turns of handshakes: one at a time, bounded in number, fair between addresses."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.testing

from odradek.env.ports import ConnectionLost
from odradek.env.real import RealEnv, RealMeter
from odradek.security.handshakes import OTHERS_SHARE, WAITING_MAX, WAITING_PER_HOST_MAX, Handshakes


class Peer:
    """A connection that has an address, and a session whose steps wait until they may end."""

    def __init__(self, host: str, gate: threading.Event) -> None:
        self.peer_host = host
        self._gate = gate
        self.at_once = 0

    def handshake(self) -> bool:
        self.at_once += 1
        assert self.at_once == 1
        self._gate.wait()
        self.at_once -= 1
        return True


async def _shake(handshakes: Handshakes, peer: Any, outcomes: list[str]) -> None:
    try:
        await handshakes._turn(peer, peer)
        outcomes.append("done")
    except ConnectionLost:
        outcomes.append("refused")


@pytest.mark.trio
async def test_one_address_has_half_of_the_places() -> None:
    """The others are refused at once; another address finds room, until all places are taken."""
    handshakes, gate = Handshakes(RealEnv()), threading.Event()
    outcomes: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for host, count in (("a", WAITING_PER_HOST_MAX + 5), ("b", WAITING_PER_HOST_MAX), ("c", 1)):
                for _ in range(count):
                    nursery.start_soon(_shake, handshakes, Peer(host, gate), outcomes[host])
                await trio.testing.wait_all_tasks_blocked()
            assert handshakes.statistics() == {"waiting": WAITING_MAX, "begun": 0, "refused": 6}
            assert not handshakes.has_room("d")
            gate.set()
    assert outcomes["a"] == ["refused"] * 5 + ["done"] * WAITING_PER_HOST_MAX
    assert outcomes["b"] == ["done"] * WAITING_PER_HOST_MAX
    assert outcomes["c"] == ["refused"]
    assert handshakes.has_room("a")


@pytest.mark.trio
async def test_who_gives_up_keeps_nobody_waiting() -> None:
    """A peer whose time is over while it waits, or while its turn comes, passes its turn on."""
    handshakes, gate = Handshakes(RealEnv()), threading.Event()
    outcomes: list[str] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_shake, handshakes, Peer("a", gate), outcomes)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.01):
                await _shake(handshakes, Peer("b", gate), outcomes)
            nursery.start_soon(_shake, handshakes, Peer("c", gate), outcomes)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
    assert outcomes == ["done", "done"]
    assert handshakes.statistics()["waiting"] == 0


class Meter(RealMeter):
    """The CPU of a worker as a test sets it."""

    seconds = 0.0

    def thread_cpu_seconds(self) -> float:
        return self.seconds


@pytest.mark.trio
async def test_a_busy_loop_keeps_its_share() -> None:
    """Between two turns a loop with other work has it for several times the CPU of a turn, however long the turn waited."""
    env, meter = RealEnv(), Meter()
    env.meter = meter
    handshakes = Handshakes(env)
    busy_seconds = 0.0
    is_over = False

    async def work() -> None:
        nonlocal busy_seconds
        while not is_over:
            began = trio.current_time()
            while trio.current_time() < began + 0.001:
                pass
            busy_seconds += trio.current_time() - began
            await trio.lowlevel.checkpoint()

    class Step:
        peer_host = "a"
        cpu_seconds = 0.0

        def handshake(self) -> bool:
            meter.seconds += self.cpu_seconds
            return True

    async def pause_after(cpu_seconds: float) -> float:
        step = Step()
        step.cpu_seconds = cpu_seconds
        await handshakes._turn(step, step)  # type: ignore[arg-type]
        before = busy_seconds
        await handshakes._turn(step, step)  # type: ignore[arg-type]
        return busy_seconds - before

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            assert await pause_after(0.05) >= OTHERS_SHARE * 0.05 * 0.9
            is_over = True
