"""docs/internals/request-handlers.md agrees with the tables of brokers and controllers."""

from __future__ import annotations

from odradek.wire.api_keys import ApiKey
from tests.docs.api_page import PATH, handlers, place_of, render


def test_the_page_is_written_by_the_code() -> None:
    """The page equals the output of `python -m tests.docs.api_page`, so a new API or a moved handler is on it."""
    assert PATH.read_text() == render()


def test_every_api_has_a_handler_that_is_found() -> None:
    """Each API of the tables has a handler that the page can name."""
    of_broker, of_controller = handlers()
    assert {int(key) for key in ApiKey} == {*of_broker, *of_controller}
    for handle in (*of_broker.values(), *of_controller.values()):
        assert "Mock" not in place_of(handle)
