"""The events of a run as one self-contained HTML file, with a row for each machine and time from left to right. PURE.

The page (`timeline.html`) draws the visible part on a canvas. Its data is one JSON object. There, times are in
microseconds, and machines and APIs are indexes.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import attrs

from sim.run import RunResult

_PLACE = "/*DATA*/null"

__all__ = ["Timeline"]


@attrs.define
class Timeline:
    """Collects the events of a run. Times are virtual seconds; `who` is the name of a machine."""

    messages: list[tuple[float, float, str, str, str, int, bool]] = attrs.Factory(list)
    """(time sent, time received, source, target, API name, bytes, True if it is a response) of each message."""
    events: list[tuple[float, str, str, str]] = attrs.Factory(list)
    spans: list[tuple[float, float, str, str, str]] = attrs.Factory(list)
    """(begin, end, machine, kind, text) of each fault or down time."""
    high_watermarks: dict[str, dict[str, list[tuple[float, int]]]] = attrs.Factory(dict)
    """For each partition and each machine, a list of (time, high watermark), one for each change."""
    _open: dict[tuple[str, str, str], float] = attrs.Factory(dict)

    def event(self, time: float, who: str, kind: str, text: str) -> None:
        """Add an event without a duration. From `crash` or `exit` to the next `boot` the machine counts as down."""
        self.events.append((time, who, kind, text))
        if kind == "boot":
            self.end(time, who, "down", "down")
        elif kind == "exit" or kind.startswith("crash"):
            self.begin(time, who, "down", "down")

    def message(
        self, sent: float, received: float, source: str, target: str, api: str, size: int, *, is_answer: bool
    ) -> None:
        """Add a frame that has arrived completely."""
        self.messages.append((sent, received, source, target, api, size, is_answer))

    def begin(self, time: float, who: str, kind: str, text: str) -> None:
        """Begin a fault or down time, unless the same fault or down time has already begun."""
        self._open.setdefault((who, kind, text), time)

    def end(self, time: float, who: str, kind: str, text: str) -> None:
        """End a fault or down time, provided that it has begun."""
        since = self._open.pop((who, kind, text), None)
        if since is not None and time > since:
            self.spans.append((since, time, who, kind, text))

    def high_watermark(self, time: float, who: str, partition: str, offset: int) -> bool:
        """Add a replica's high watermark. Returns False if it has not changed."""
        points = self.high_watermarks.setdefault(partition, {}).setdefault(who, [])
        if points and points[-1][1] == offset:
            return False
        points.append((time, offset))
        return True

    def to_html(self, result: RunResult, command: str, commit: str) -> str:
        """Write the page as a self-contained HTML text."""
        data = json.dumps(self._data(result, command, commit), separators=(",", ":"))
        page = files("sim.campaign").joinpath("timeline.html").read_text()
        return page.replace(_PLACE, data.replace("</", "<\\/"), 1)

    def _data(self, result: RunResult, command: str, commit: str) -> dict[str, Any]:
        end = result.virtual_seconds
        for who, kind, text in list(self._open):
            self.end(end, who, kind, text)
        lanes = self._lanes()
        spans = [span for span in self.spans if span[2] in lanes]
        place = {name: index for index, name in enumerate(lanes)}
        apis = sorted({message[4] for message in self.messages})
        api_place = {name: index for index, name in enumerate(apis)}
        return {
            "seed": result.seed,
            "verdict": result.verdict,
            "message": result.message.rstrip().splitlines()[-30:],
            "command": command,
            "commit": commit,
            "digest": result.digest,
            "end": _us(end),
            "lanes": lanes,
            "apis": apis,
            "messages": [
                [_us(sent), _us(received), place[source], place[target], api_place[api], size, int(answer)]
                for sent, received, source, target, api, size, answer in sorted(self.messages)
            ],
            "events": [[_us(time), place[who], kind, text] for time, who, kind, text in self.events],
            "spans": [
                [_us(since), _us(until), place[who], kind, text] for since, until, who, kind, text in spans
            ],
            "watermarks": {
                partition: {
                    who: [[_us(time), offset] for time, offset in points]
                    for who, points in sorted(replicas.items())
                }
                for partition, replicas in sorted(self.high_watermarks.items())
            },
        }

    def _lanes(self) -> list[str]:
        """List the names of the rows: the storm first, then controllers, brokers, and all other machines."""
        names = {who for _, who, _, _ in self.events}
        names |= {each for message in self.messages for each in message[2:4]}
        rank = {"storm": 0, "controller": 1, "node": 2}
        return sorted(names, key=lambda name: (rank.get(name.partition("-")[0], 3), name))


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
