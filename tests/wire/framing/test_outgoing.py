"""Bytes that a socket did not accept at once are sent later, each once."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from odradek.wire.framing.outgoing import drop_sent


@given(st.lists(st.binary(min_size=1, max_size=8), max_size=6), st.data())
def test_a_socket_that_takes_pieces_gets_each_byte_once(pieces: list[bytes], data: st.DataObject) -> None:
    """The peer reads the same bytes, however few of them the socket accepts at a time."""
    outgoing = deque(map(memoryview, pieces))
    read = b""
    while outgoing:
        waiting = b"".join(outgoing)
        taken = data.draw(st.integers(0, len(waiting)))
        read += waiting[:taken]
        drop_sent(outgoing, taken)
        if not taken:
            break
    assert read + b"".join(outgoing) == b"".join(pieces)
