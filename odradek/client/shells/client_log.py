"""The log of all clients, `odradek.client`: lines are written where a handler holds up nobody. SHELL.

A handler is the application's: it may fail, wait, or send by the very client whose lines it gets. So lines are written
without the client's lock, and what a handler raises ends there.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable

from odradek.client.core.notes import Note

__all__ = ["CRITICAL", "LOGGER", "write_error", "write_notes"]

LOGGER = logging.getLogger("odradek.client")
CRITICAL = logging.CRITICAL


def write_notes(notes: Iterable[Note]) -> None:
    """Write lines that a core has kept."""
    for note in notes:
        _write(note.level, note.text, None)


def write_error(level: int, text: str, error: BaseException) -> None:
    """Write a line with an exception's traceback."""
    _write(level, text, error)


def _write(level: int, text: str, error: BaseException | None) -> None:
    try:
        LOGGER.log(level, "%s", text, exc_info=error)
    except Exception:  # noqa: BLE001 - it is the handler's, and the line cannot be written to that log
        if sys.stderr is not None:
            print(f"a handler of the log odradek.client failed at: {text}", file=sys.stderr)
            traceback.print_exc()
