"""docs/internals/request-handlers.md is what the tables of a broker and of a controller say."""

from __future__ import annotations

from odradek.wire.api_keys import ApiKey
from tests.docs.api_page import PATH, handlers, place_of, render


def test_the_page_is_written_by_the_code() -> None:
    """An API that is added, or a handler that moves, has its line: `python -m tests.docs.api_page` writes it."""
    assert PATH.read_text() == render()


def test_every_api_has_a_handler_that_is_found() -> None:
    """Each API of the tables is served somewhere, by code that the page can name."""
    of_broker, of_controller = handlers()
    assert {int(key) for key in ApiKey} == {*of_broker, *of_controller}
    for handle in (*of_broker.values(), *of_controller.values()):
        assert "Mock" not in place_of(handle)
