"""The log of all clients, `odradek.client`. SHELL.

A log handler belongs to the application: it may fail, wait, or use the client whose lines it handles. So a
line is written at a point where the client's lock is free, and where a slow handler delays only the log.
Exceptions of a handler are ignored. The same rules hold for the application's function `odradek.on.error`,
which gets all lines from WARNING on.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterable

from odradek.client.core.notes import ERROR, WARNING, Note

__all__ = ["CRITICAL", "LOGGER", "OnError", "write_error", "write_notes"]

OnError = Callable[[int, str], object]
"""The application's own function for log lines, called with the level and the text of a line."""

LOGGER = logging.getLogger("odradek.client")
CRITICAL = logging.CRITICAL


def write_notes(notes: Iterable[Note], on_error: OnError | None = None) -> None:
    """Write the log lines that a core has collected."""
    for note in notes:
        _write(note.level, note.text, None)
        _report(on_error, note.level, note.text)


def write_error(level: int, text: str, error: BaseException, on_error: OnError | None = None) -> None:
    """Write a log line with an exception's traceback."""
    _write(level, text, error)
    _report(on_error, level, f"{text}: {error!r}")


def _report(on_error: OnError | None, level: int, text: str) -> None:
    if on_error is not None and level >= WARNING:
        try:
            on_error(level, text)
        except Exception as error:  # noqa: BLE001 - an error of the application is logged
            _write(ERROR, "the application's callback odradek.on.error raised an exception", error)


def _write(level: int, text: str, error: BaseException | None) -> None:
    try:
        LOGGER.log(level, "%s", text, exc_info=error)
    except Exception:  # noqa: BLE001 - an error of the handler cannot be logged by the same handler
        if sys.stderr is not None:
            print(f"a handler of the logger odradek.client failed to write: {text}", file=sys.stderr)
            traceback.print_exc()
