"""docs/logs.md has every event that a node can log, with its level, and no other event."""

from __future__ import annotations

import re

import pytest

from tests.docs.log_events import HiddenEvent, log_events, sources_of_a_node
from tests.docs.markdown import ROOT

PAGE = "docs/logs.md"
_ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| ([^|]*) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def _rows() -> list[tuple[str, set[str]]]:
    text = (ROOT / PAGE).read_text()
    rows = [(event, set(levels.split(", "))) for event, levels, _, _ in _ROW.findall(text)]
    assert len(rows) == sum(line.startswith("| `") for line in text.splitlines())
    return rows


def test_every_log_event_is_documented() -> None:
    """The page has one row with level, meaning and advice for each event in the sources, and no other rows."""
    rows = _rows()
    documented = dict(rows)
    assert len(documented) == len(rows)
    assert documented == log_events(sources_of_a_node())


@pytest.mark.parametrize(
    ("source", "events"),
    [
        ('log.info("node.ready", start_ms=1)', {"node.ready": {"info"}}),
        ('self._broker.log.exception("request.bug")', {"request.bug": {"error"}}),
        (
            'log.info("isr.expanded" if grown else "isr.shrunk")',
            {"isr.expanded": {"info"}, "isr.shrunk": {"info"}},
        ),
        (
            "class Errors:\n"
            "    def note(self, event, **fields):\n"
            "        self._log.error(event, **fields)\n"
            'errors.note("fetch.disk_error")\n'
            'errors.note("no event")',
            {"fetch.disk_error": {"error"}},
        ),
        (
            "def cut(offset):\n"
            "    level = self._log.warning if offset else self._log.info\n"
            '    level("replication.truncated")',
            {"replication.truncated": {"info", "warning"}},
        ),
        ("math.log(7)\nparser.error('usage')", {}),
    ],
)
def test_an_event_is_found_however_it_is_written(source: str, events: dict[str, set[str]]) -> None:
    """The event is found in each of the three ways in which a log's method may get it."""
    assert log_events([("module", source)]) == events


@pytest.mark.parametrize(
    "source", ['log.info("node." + what)', "log.info(event)", "tell = log.info", "told(log.warning)"]
)
def test_an_event_cannot_be_hidden(source: str) -> None:
    """If the source does not spell an event's name out, `HiddenEvent` is raised, since the page would lack the
    event."""
    with pytest.raises(HiddenEvent):
        log_events([("module", source)])
