"""Turns of TLS handshakes: one at a time, in limited number, and fair between addresses."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.testing

from odradek.env.ports import ConnectionLost
from odradek.env.real import RealEnv, RealMeter
from odradek.security.handshakes import OTHERS_SHARE, WAITING_MAX, Handshakes, network_of


class Peer:
    """A connection with an address. Its session's steps block until a gate opens."""

    def __init__(self, host: str, gate: threading.Event) -> None:
        self.peer_host = host
        self.peer_port = 0
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


async def _crowd(
    nursery: trio.Nursery, handshakes: Handshakes, count: int, gate: threading.Event, host: str
) -> list[str]:
    """Start `count` handshakes of one address, which wait for their turns.

    Return the list to which their outcomes are added.
    """
    outcomes: list[str] = []
    for _ in range(count):
        nursery.start_soon(_shake, handshakes, Peer(host, gate), outcomes)
    await trio.testing.wait_all_tasks_blocked()
    return outcomes


@pytest.mark.trio
async def test_the_address_with_the_most_gives_way() -> None:
    """Two addresses fill all waiting places.

    Further handshakes of theirs are refused, and another address still finds a place.
    """
    handshakes, gate = Handshakes(RealEnv()), threading.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            # The first handshake has its turn, so there is one more than there are waiting places.
            first = await _crowd(nursery, handshakes, WAITING_MAX // 2 + 1, gate, "a")
            second = await _crowd(nursery, handshakes, WAITING_MAX // 2, gate, "b")
            assert not handshakes.has_room("a")
            assert not handshakes.has_room("b")
            assert (await _crowd(nursery, handshakes, 5, gate, "a")) == ["refused"] * 5
            assert handshakes.has_room("c")
            honest = await _crowd(nursery, handshakes, 10, gate, "c")
            assert honest == []
            assert first == second == ["refused"] * 5
            assert handshakes.statistics() == {"waiting": WAITING_MAX, "begun": 0, "refused": 15}
            gate.set()
    assert honest == ["done"] * 10
    assert first.count("done") == WAITING_MAX // 2 - 4
    assert second.count("done") == WAITING_MAX // 2 - 5
    assert handshakes.statistics()["waiting"] == 0


@pytest.mark.trio
async def test_addresses_have_their_turns_one_after_the_other() -> None:
    """Many handshakes of one address wait. A handshake of another address waits for one turn only."""
    handshakes, gate = Handshakes(RealEnv()), threading.Event()
    order: list[str] = []

    async def shake(host: str) -> None:
        await _shake(handshakes, Peer(host, gate), [])
        order.append(host)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for host, count in (("a", 20), ("b", 3), ("c", 1)):
                for _ in range(count):
                    nursery.start_soon(shake, host)
                await trio.testing.wait_all_tasks_blocked()
            gate.set()
    assert "".join(order[:8]) == "aabcabab"
    assert set(order[8:]) == {"a"}


@pytest.mark.trio
async def test_as_many_addresses_as_places_keep_theirs() -> None:
    """Each waiting place belongs to another address. A handshake of a further address is refused."""
    handshakes, gate = Handshakes(RealEnv()), threading.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await _crowd(nursery, handshakes, 1, gate, "first")
            for number in range(WAITING_MAX):
                await _crowd(nursery, handshakes, 1, gate, f"host-{number}")
            assert not handshakes.has_room("another")
            assert (await _crowd(nursery, handshakes, 1, gate, "another")) == ["refused"]
            gate.set()
    assert handshakes.statistics()["refused"] == 1


@pytest.mark.trio
async def test_who_gives_up_keeps_nobody_waiting() -> None:
    """A handshake times out while it waits or at its turn. The next handshake gets the turn."""
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
    """A meter of CPU time that the test sets."""

    seconds = 0.0

    def thread_cpu_seconds(self) -> float:
        return self.seconds


@pytest.mark.trio
async def test_a_busy_loop_keeps_its_share() -> None:
    """Between two turns of handshakes, a busy loop does other work for several times the CPU time of the first turn."""
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
        peer_port = 0
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


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::7", "2001:db8:0:1::"),
        ("2001:db8:0:1:ffff::", "2001:db8:0:1::"),
        ("2001:db8:0:2::7", "2001:db8:0:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("no:address", "no:address"),
    ],
)
def test_addresses_of_one_network_count_as_one(host: str, network: str) -> None:
    """IPv6 addresses of one network of 64 bits count as one address."""
    assert network_of(host) == network


@pytest.mark.trio
async def test_a_network_of_ipv6_gives_way_to_others() -> None:
    """Many addresses of one IPv6 network fill all places. A client of another network still finds one."""
    handshakes, gate = Handshakes(RealEnv()), threading.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(WAITING_MAX + 1):
                nursery.start_soon(_shake, handshakes, Peer(f"2001:db8::{number:x}", gate), [])
            await trio.testing.wait_all_tasks_blocked()
            assert not handshakes.has_room("2001:db8::ffff")
            assert handshakes.has_room("2001:db8:0:1::1")
            assert (await _crowd(nursery, handshakes, 1, gate, "192.0.2.7")) == []
            gate.set()
    assert handshakes.statistics()["refused"] == 1
