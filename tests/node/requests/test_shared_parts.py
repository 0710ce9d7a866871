"""Many responses share constant parts. If a request changes one of them, the node detects it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.data_plane.handlers.fetching import fetch_job
from odradek.data_plane.handlers.producing import produce
from odradek.serving import shared_parts
from odradek.serving.shared_parts import assert_unchanged, shared
from odradek.wire.messages.fetch import LeaderIdAndEpoch
from sim.machine.world import World
from testkit.virtual import Client
from tests.node.requests.test_connection_loop import Node, framed, play


@pytest.fixture(autouse=True)
def _no_longer_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the list of shared parts after each test."""
    monkeypatch.setattr(shared_parts, "_SHARED", list(shared_parts._SHARED))


def test_a_list_that_grows_is_found() -> None:
    """If a shared empty list gets an element, the check fails and shows the list."""
    empty: list[int] = shared([])
    assert_unchanged()
    empty.append(7)
    with pytest.raises(
        AssertionError, match=r"answers share the part \[\], and one of them changed it to \[7\]"
    ):
        assert_unchanged()


def test_a_structure_that_is_set_is_found() -> None:
    """If a field of a shared structure is set, the check fails and shows the field."""
    nobody = shared(LeaderIdAndEpoch())
    nobody.leader_id = 3
    with pytest.raises(AssertionError, match="leader_id=3"):
        assert_unchanged()


@pytest.mark.parametrize("module", [produce, fetch_job])
def test_answers_of_produce_and_fetch_are_watched(module: object) -> None:
    """All shared parts of Produce and Fetch responses are checked."""
    watched = {id(part) for part, _ in shared_parts._SHARED}
    parts = [value for name, value in vars(module).items() if name.startswith(("_NO", "_NONE"))]
    assert len(parts) >= 3
    assert all(id(part) in watched for part in parts)


def test_a_request_that_changes_what_is_shared_is_a_bug() -> None:
    """A node that poisons requests checks the shared parts after each frame. A change closes the connection as a
    bug."""
    empty: list[object] = shared([])

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await client.send(framed(b"echo:before"))
        assert await client.answer() == b"before"
        assert node.log.events == []
        node.waiting = _Noted(empty)
        await client.send(framed(b"wait:x"))
        while not await client.is_closed():
            continue
        assert node.log.events == ["connection.bug"]

    play(script)


class _Noted(dict[bytes, Any]):
    """A dictionary that wrongly also adds each key to a shared list."""

    def __init__(self, noted: list[object]) -> None:
        super().__init__()
        self._noted = noted

    def __setitem__(self, key: bytes, value: Any) -> None:
        self._noted.append(key)
        super().__setitem__(key, value)
