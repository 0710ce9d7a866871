"""Reads controllers' audit logs to find out which client requested a change in the metadata log. PURE.

Records of the metadata log do not name the client that requested a change. The active controller's audit log names
this client, with the epoch and the offsets of the records. Only one controller writes records in an epoch. So a line
of the audit log belongs to a record if, and only if, epoch and offset match. The match is right even if the records
were not yet committed when the line was written.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from odradek.operations.cluster_events import Event

__all__ = ["Author", "EventAuthors"]

_CHANGED, _MISSING = "metadata.changed", "lines.missing"
_MARKS = (b'"metadata.changed"', b'"lines.missing"')


@attrs.frozen
class Author:
    """The client whose request has led to a record. The principal `node N` means controller N itself."""

    principal: str
    address: str | None
    client_id: str | None
    api: str

    def __str__(self) -> str:
        place = f" at {self.address}" if self.address else ""
        return f"{self.principal}{place}, {self.api}"


@attrs.define
class _Epoch:
    first_offsets: list[int] = attrs.field(factory=list)
    changes: list[tuple[int, int, Author]] = attrs.field(factory=list)


class EventAuthors:
    """The changes in audit logs, with their authors. Call `read` for each file, then `author` for each event."""

    def __init__(self) -> None:
        self._epochs: dict[int, _Epoch] = {}
        self.missing = 0
        """The number of lines that are missing from the audit logs, because they were lost, or were only counted."""
        self.unreadable = 0
        """The number of lines that are incomplete, or not from an audit log."""

    def read(self, lines: Iterable[bytes]) -> None:
        """Read the lines of one audit log file."""
        for line in lines:
            if any(mark in line for mark in _MARKS):
                try:
                    self._take_line(json.loads(line))
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                    self.unreadable += 1

    def _take_line(self, line: Mapping[str, Any]) -> None:
        if line["event"] == _MISSING or line.get("further"):
            self.missing += int(line["count"])
        elif line["event"] == _CHANGED:
            author = Author(str(line["principal"]), line["address"], line["client_id"], str(line["api"]))
            change = int(line["first_offset"]), int(line["last_offset"]), author
            self._epochs.setdefault(int(line["epoch"]), _Epoch()).changes.append(change)

    def author(self, event: Event) -> Author | None:
        """Return the author of an event; None if no line names the author."""
        epoch = self._epochs.get(event.epoch)
        if epoch is None:
            return None
        if len(epoch.first_offsets) != len(epoch.changes):
            epoch.changes.sort(key=lambda change: change[:2])
            epoch.first_offsets = [change[0] for change in epoch.changes]
        place = bisect_right(epoch.first_offsets, event.offset) - 1
        if place < 0 or epoch.changes[place][1] < event.offset:
            return None
        return epoch.changes[place][2]

    def gaps(self, events: Iterable[Event], controllers: Mapping[int, int]) -> list[str]:
        """Return a phrase for each epoch with events whose author is unknown. `controllers` maps an epoch to
        the id of the active controller.

        Elections are left out, since no client requests them.
        """
        unknown = [event for event in events if not event.by_quorum and self.author(event) is None]
        counts = Counter(event.epoch for event in unknown)
        phrases = []
        for epoch, count in sorted(counts.items()):
            node = controllers.get(epoch)
            who = "another controller" if node is None else f"controller {node}"
            of = f"{count} event{'s' if count > 1 else ''} in epoch {epoch}"
            if epoch not in self._epochs:
                phrases.append(f"{of} (the given files have no line of {who})")
            else:
                last = max(event.offset for event in unknown if event.epoch == epoch)
                phrases.append(
                    f"{of} (the lines of {who} up to offset {last} were rotated away or never written)"
                )
        return phrases
