"""Parts that many answers share are the same after every request, or the change is found."""

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
    """Forget after each test the parts that it has broken."""
    monkeypatch.setattr(shared_parts, "_SHARED", list(shared_parts._SHARED))


def test_a_list_that_grows_is_found() -> None:
    """An answer that appends to an empty list of all answers is found out, by what it has made of it."""
    empty: list[int] = shared([])
    assert_unchanged()
    empty.append(7)
    with pytest.raises(
        AssertionError, match=r"answers share the part \[\], and one of them changed it to \[7\]"
    ):
        assert_unchanged()


def test_a_structure_that_is_set_is_found() -> None:
    """A field of a shared structure that one answer sets is found out as well."""
    nobody = shared(LeaderIdAndEpoch())
    nobody.leader_id = 3
    with pytest.raises(AssertionError, match="leader_id=3"):
        assert_unchanged()


@pytest.mark.parametrize("module", [produce, fetch_job])
def test_answers_of_produce_and_fetch_are_watched(module: object) -> None:
    """The parts that these two handlers put into many answers are all watched."""
    watched = {id(part) for part, _ in shared_parts._SHARED}
    parts = [value for name, value in vars(module).items() if name.startswith(("_NO", "_NONE"))]
    assert len(parts) >= 3
    assert all(id(part) in watched for part in parts)


def test_a_request_that_changes_what_is_shared_is_a_bug() -> None:
    """A node that poisons requests looks at the shared parts after each frame: the connection ends, with its traceback."""
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
    """Requests that wait, and a list to which each of them is added by mistake."""

    def __init__(self, noted: list[object]) -> None:
        super().__init__()
        self._noted = noted

    def __setitem__(self, key: bytes, value: Any) -> None:
        self._noted.append(key)
        super().__setitem__(key, value)
