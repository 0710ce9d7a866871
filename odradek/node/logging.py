"""Structured logs on stderr: one line for each event that an operator needs (SHELL: it writes)."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from datetime import datetime, timedelta
from typing import Any, TextIO

import structlog

from odradek.env.ports import Clock
from odradek.metadata_quorum.config.log_levels import LogLevels

_SEVERITIES = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40, "critical": 50}
_EPOCH = datetime(1970, 1, 1)


class _LineLogger:
    """Writes log lines. A line that cannot be written, for example to a full disk, is dropped, and the node
    continues.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def msg(self, line: str) -> None:
        if not line.isprintable():
            # Client ids and names come from strangers, and a terminal would execute control characters in them.
            line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:
            self.lost += 1

    info = warning = error = debug = critical = exception = msg


def make_logger(
    clock: Clock, stream: TextIO | None = None, levels: LogLevels | None = None, **bound: Any
) -> Any:
    """Make a logger whose lines are `timestamp level event key=value ...`; time is the node's own clock.

    `levels` may be changed at any time.
    """
    shown = levels if levels is not None else LogLevels()

    def drop_unwanted(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if not shown.shows(_SEVERITIES[method]):
            raise structlog.DropEvent
        return event

    def add_timestamp(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        wall = _EPOCH + timedelta(milliseconds=clock.wall_ms())
        event["timestamp"] = wall.isoformat(timespec="milliseconds") + "Z"
        return event

    target = stream if stream is not None else sys.stderr
    return structlog.wrap_logger(
        _LineLogger(target),
        processors=[
            drop_unwanted,
            structlog.processors.add_log_level,
            add_timestamp,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(
                key_order=["timestamp", "level", "event"], bool_as_flag=False
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("debug"),
    ).bind(**bound)
