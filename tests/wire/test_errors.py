"""Texts of errors, which repeat what a client wrote."""

from __future__ import annotations

from itertools import repeat

from wire.errors import MESSAGE_CHARACTERS_MAX, ErrorCode, KafkaError, listed


def test_of_many_names_only_as_many_are_read_as_a_text_holds() -> None:
    """However many a request lists; the text shows that it was cut."""
    error = KafkaError(ErrorCode.INVALID_REQUEST, f"Names: {listed(repeat('name'))}")
    assert len(error.message) == MESSAGE_CHARACTERS_MAX + 3
    assert error.message.endswith("...")
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b"], ",") == "a,b"
    assert listed([]) == ""
