"""The pauses of the console's door between failed starts, by a clock that jumps."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import attrs
import pytest
import trio
import trio.testing

from odradek.node.configuration.console_config import ConsoleConfig
from odradek.node.node import NodeCannotStart, NodeCannotStartYet
from odradek.node.supervision.console_door import GOOD_SECONDS, PORT_SECONDS_MAX, ConsoleDoor, open_console

CONFIG = ConsoleConfig(
    host="127.0.0.1",
    port=0,
    hosts=(),
    tls=None,
    listener="PLAINTEXT",
    client={"security.protocol": "SSL"},
    client_config="",
    idle_seconds=600.0,
)


class Pauses:
    """A log that keeps the pauses."""

    def __init__(self) -> None:
        self.found: list[object] = []

    def warning(self, event: str, /, **fields: object) -> None:
        self.found.append(fields["pause_seconds"])


class Door(ConsoleDoor):
    """A door whose processes fail, each after a given number of seconds."""

    seconds: list[float]
    enough: trio.CancelScope

    async def _run_process(self, bootstrap: str) -> int:
        if not self.seconds:
            self.enough.cancel()
        else:
            await trio.sleep(self.seconds.pop(0))
        return 1

    def _turn_away(self) -> None:
        """Leave the connections, so that the next process starts at once."""


def pauses_after(seconds: list[float]) -> list[object]:
    """Return the pauses after processes that have run for so long."""
    log = Pauses()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            door = Door(CONFIG, {}, 1, listening, log)  # type: ignore[arg-type]
            door.seconds = list(seconds)
            with socket.create_connection(listening.getsockname()), trio.CancelScope() as door.enough:
                await door.serve("127.0.0.1:1")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return log.found[: len(seconds)]


def test_a_pause_is_short_again_after_a_good_run() -> None:
    """Starts that fail at once wait longer each time. A crash after a minute is no failed start."""
    assert pauses_after([0.0, 0.0, 0.0, GOOD_SECONDS, 0.0]) == [1.0, 2.0, 4.0, 1.0, 2.0]


def test_a_node_refuses_a_certificate_for_everybody() -> None:
    """A node says at its start that its console must not lend a client's certificate to everybody."""
    with pytest.raises(NodeCannotStart, match=r"as\.certificate=true"):
        trio.run(open_console, _Node({"ssl.keystore.location": "x"}), Pauses())


def test_a_node_waits_for_the_console_of_its_predecessor() -> None:
    """The console of a killed node holds the port until it has ended. The next node waits for it, but not for ever."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            node = _Node({}, port=taken.getsockname()[1])
            with pytest.raises(NodeCannotStartYet, match="for the console: Address already in use"):
                await open_console(node, Pauses())  # type: ignore[arg-type]
            assert trio.current_time() - began >= PORT_SECONDS_MAX
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_close_later, taken)
                door = await open_console(node, Pauses())  # type: ignore[arg-type]
        assert door is not None
        assert door.port == node.console.port
        door.close()

    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    trio.run(main, clock=clock)


async def _close_later(taken: socket.socket) -> None:
    await trio.sleep(PORT_SECONDS_MAX / 2)
    taken.close()


class _Node:
    """The configuration of a node, as far as the console needs it."""

    node_id = 1

    def __init__(self, client: Mapping[str, str], port: int = 0) -> None:
        self.console = attrs.evolve(CONFIG, client={**CONFIG.client, **client}, port=port)
