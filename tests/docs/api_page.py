"""docs/internals/request-handlers.md, generated from the API tables. `python -m tests.docs.api_page` writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from odradek.data_plane.handlers.build import build_table
from odradek.metadata_quorum.controller import controller
from odradek.metadata_quorum.controller.access.tokens import TokenRequest
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller_channel import TOKEN_APIS
from odradek.metadata_quorum.controller_table import build_controller_table
from odradek.metadata_quorum.features import THIS_RELEASE
from odradek.wire.api import api_name, api_versions
from odradek.wire.api_keys import ApiKey
from odradek.wire.schema.anatomy_rows import ODD, ROWS
from odradek.wire.structure import Message
from tests.docs.markdown import ROOT
from tests.security.table import rights

PATH = ROOT / "docs" / "internals" / "request-handlers.md"
TITLE = """# From an API to its code

Where each API that a node serves is handled, decided, guarded and held against Apache Kafka. This page is written by the
code: `python -m tests.docs.api_page`. [contributing.md](../contributing.md#add-an-api) says how an API is added.

* **Listeners**: `broker` is a listener for clients, `controller` one of the quorum. The handlers are in this order.
* **Decision**: the function of the active controller that decides the request. A broker forwards such a request.
* **Right**: the docstring of the door. [acls.md](../acls.md) says who judges.
* **Things**: what gets a result of its own, from the row in `wire/schema/anatomy_rows.py`. `/` leads to an inner list, and
  `*` is a plain value. An API without things is refused as a whole.

| key | API | versions | listeners | handler | decision | right | things | cases |
| ---: | --- | --- | --- | --- | --- | --- | --- | --- |
"""
CASES_ELSEWHERE = dict.fromkeys(
    (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY), "tests/conformance/telemetry/cases.py"
)
"""APIs that Kafka serves only with a plugin. Their cases are outside the corpus."""
Handlers = Mapping[int, Callable[..., Any]]


def handlers() -> tuple[Handlers, Handlers]:
    """Make the handlers of a broker's listener and of a controller's. They are read and never called."""
    broker = MagicMock()
    broker.settings.release = THIS_RELEASE
    broker.transactions.settings.two_phase_commit = False
    service = MagicMock(doors=None)
    decided = Controller(MagicMock(broker_session_timeout_ms=9000)).requests
    at_controller = build_controller_table(service, MagicMock(), decided, MagicMock())
    return build_table(broker)._handlers, at_controller._handlers


def decisions() -> dict[ApiKey, Callable[..., Any]]:
    """Return the deciding function of each API that the controller decides."""
    table = {**controller._OF_NODES, **controller._OF_CLIENTS}
    found = {
        ApiKey(cls.API_KEY): decide
        for cls, decide in table.items()
        if issubclass(cls, Message) and cls.API_KEY is not None
    }
    return found | dict.fromkeys(TOKEN_APIS, table[TokenRequest])


def place_of(code: Callable[..., Any]) -> str:
    """Return the name of a handler class or function, as a link to its file."""
    owner = getattr(code, "__self__", None)
    named = code if owner is None else type(owner)
    path = named.__module__.removeprefix("odradek.").replace(".", "/") + ".py"
    if not (ROOT / path).exists():
        path = named.__module__.replace(".", "/") + ".py"
    return f"[`{named.__qualname__}`](../../{path})"


def things_of(key: ApiKey) -> str:
    """Name the lists of a request whose elements get results of their own. For an API of unusual form, give the reason
    instead."""
    if key in ODD:
        return f"odd: {ODD[key]}"
    rows = [
        f"`{' / '.join(filter(None, (row.things, row.within and row.within.things)))}`"
        for row in ROWS.get(key, ())
        if row.things
    ]
    return "; later ".join(rows)


def _line(key: ApiKey, of_broker: Handlers, of_controller: Handlers) -> str:
    first, last = api_versions(key)
    served = {"broker": of_broker, "controller": of_controller}
    listeners = [name for name, table in served.items() if key in table]
    places = list(dict.fromkeys(place_of(served[name][key]) for name in listeners))
    decide = decisions().get(key)
    cases = CASES_ELSEWHERE.get(key, f"tests/conformance/cases/{key.name.lower()}.py")
    return " | ".join(
        (
            f"| {int(key)}",
            api_name(key),
            f"{first} to {last}" if last > first else str(first),
            ", ".join(listeners),
            ", ".join(places),
            place_of(decide) if decide is not None else "",
            rights()[key][0],
            things_of(key),
            f"[{Path(cases).name}](../../{cases}) |" if (ROOT / cases).exists() else "|",
        )
    )


def render() -> str:
    """Return the text of the page."""
    of_broker, of_controller = handlers()
    return TITLE + "".join(
        f"{_line(key, of_broker, of_controller)}\n"
        for key in ApiKey
        if key in of_broker or key in of_controller
    )


if __name__ == "__main__":
    PATH.write_text(render())
