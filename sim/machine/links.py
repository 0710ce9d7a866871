"""The links between hosts, and their troubles: cuts, losses, delays and refusals. The lower half of
`sim.machine.network`.

A link is one direction between two hosts. Its possible troubles, each by itself:

* cut: it holds everything until it is healed, as TCP's retransmission would;
* slow: everything takes up to some seconds longer;
* narrow: a limit of bytes per second for all connections together; later bytes wait behind earlier ones;
* closed: new connections fail (open ones go on): they are refused at once, or never answered;
* and by the weather a segment may be lost, which a reader sees as a stall until it is sent again.

The ends of a connection get no notice of a cut link. `sim.machine.network` has the troubles of single connections:
resets, and connections that the network has forgotten.

`Repeats` chooses the requests between nodes that arrive twice. A client whose connection is lost sends its request
again on the next one. So there are two ways:

* `answered`: the server handles the request, and the connection is lost with the answer;
* `late`: the connection is lost for the client alone. Its bytes are held up on their way, and reach the server at the
  old connection, which was logged in by that node. By then, the same request and later ones were handled. Nobody hears
  the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Literal

import attrs

from odradek.wire.api_keys import ApiKey
from sim.machine.events import Agenda, Owner
from sim.machine.weather import Weather

RETRANSMISSION_SECONDS_MIN = 0.2
"""Linux's shortest wait before a segment is sent again; it doubles with each further loss."""
LOSSES_MAX = 6
"""The most losses of one segment in a row: after that it arrives."""

REPEAT_SECONDS_MIN = 1.0
"""The least time between two requests from one node to another that arrive twice: the work must go on."""
LATE_SECONDS_MAX = (0.2, 2.0, 15.0)
"""The longest delays of a late request; each is as likely."""
FREQUENT_SHARE = 0.02
"""The share of frequent requests that may arrive twice; other requests have their own share."""
_FREQUENT = frozenset((ApiKey.FETCH, ApiKey.BROKER_HEARTBEAT))
_NAMES: Mapping[int, str] = {key.value: key.name.lower() for key in ApiKey}
_OF_LOGINS = frozenset((ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
_NEVER_LATE = frozenset((ApiKey.ENVELOPE,))
"""APIs whose requests are never late. A client's change has no number, so it would count again after a later
change.
"""
_HEAD_BYTES = 12
"""Length, API, version and correlation id: the begin of each request."""

Closed = Literal["refuses", "swallows"]

__all__ = ["Line", "Links", "Repeat", "Repeats"]


@attrs.define(eq=False)
class Line:
    """One direction of a connection, which keeps its segments in order."""

    last_arrival: float = 0.0


@attrs.define(eq=False)
class _Link:
    """One direction between two hosts."""

    held: list[Callable[[], None]] | None = None
    """The arrivals that wait until the link is healed; None while it is whole."""
    slow_seconds: float = 0.0
    bytes_per_second: float = math.inf
    busy_until: float = 0.0
    closed: Closed | None = None


class Links:
    """All links of a world."""

    def __init__(self, agenda: Agenda, weather: Weather, random: Random) -> None:
        self.agenda = agenda
        self.weather = weather
        self.random = random
        self._links: dict[tuple[str, str], _Link] = {}

    def _link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link())

    def cut(self, source: str, target: str) -> None:
        """Hold all segments from `source` to `target` (this direction only)."""
        link = self._link(source, target)
        if link.held is None:
            link.held = []

    def heal(self, source: str, target: str) -> None:
        """Let the held segments through, after a latency, and all later ones."""
        link = self._link(source, target)
        held, link.held = link.held, None
        for send in held or ():
            send()

    def cuts(self) -> list[tuple[str, str]]:
        """List the directions that are cut."""
        return [ends for ends, link in self._links.items() if link.held is not None]

    def wrong(self) -> Iterator[tuple[tuple[str, str], bool]]:
        """Yield the directions with a trouble, each with whether it is cut."""
        for ends, link in self._links.items():
            if link.held is not None:
                yield ends, True
            elif link.slow_seconds or link.closed is not None or link.bytes_per_second != math.inf:
                yield ends, False

    def slow(self, source: str, target: str, seconds: float) -> None:
        """Make everything from `source` to `target` take up to this number of seconds longer; 0: only the weather's latency."""
        self._link(source, target).slow_seconds = seconds

    def narrow(self, source: str, target: str, bytes_per_second: float) -> None:
        """Limit the bytes per second of all connections together; infinity: no limit."""
        self._link(source, target).bytes_per_second = bytes_per_second

    def close_link(self, source: str, target: str, how: Closed | None) -> None:
        """Refuse new connections from `source` to `target`; None: accept them again."""
        self._link(source, target).closed = how

    def closed(self, source: str, target: str) -> Closed | None:
        """Return the way in which new connections are refused or swallowed; None if they are let through."""
        link = self._links.get((source, target))
        return None if link is None else link.closed

    def transmit(
        self,
        source: str,
        target: str,
        arrive: Callable[[], None],
        owner: Owner | None = None,
        line: Line | None = None,
        size: int = 0,
    ) -> None:
        """Let `arrive` happen at `target` after a latency; in order, if it belongs to a `line`. `size` in bytes."""
        link = self._links.get((source, target))
        weather = self.weather
        begins = self.agenda.now
        slow_seconds = 0.0
        if link is not None:
            if link.held is not None:
                link.held.append(
                    lambda: self.transmit(source, target, arrive, owner=owner, line=line, size=size)
                )
                return
            if link.bytes_per_second != math.inf:
                begins = link.busy_until = max(begins, link.busy_until) + size / link.bytes_per_second
            slow_seconds = link.slow_seconds
        time = begins + weather.latency(self.random)
        if slow_seconds:
            time += self.random.uniform(0.0, slow_seconds)
        if line is not None:
            if weather.loss_probability:
                time += self._retransmissions()
            time = line.last_arrival = max(time, line.last_arrival)
        self.agenda.at(time, arrive, owner)

    def _retransmissions(self) -> float:
        """Draw the seconds until a TCP segment arrives, with the retransmissions after its losses."""
        seconds, wait = 0.0, RETRANSMISSION_SECONDS_MIN
        for _ in range(LOSSES_MAX):
            if self.random.random() >= self.weather.loss_probability:
                break
            seconds += wait
            wait *= 2
        return seconds


@attrs.frozen
class Repeat:
    """A request that arrives twice: at once and without its answer, or `late_seconds` later."""

    api: str
    correlation_id: bytes
    late_seconds: float

    @property
    def is_late(self) -> bool:
        return self.late_seconds > 0


class Repeats:
    """The choice of requests between nodes that arrive twice. `counts` has the number of each kind."""

    def __init__(self, random: Random, probability: float) -> None:
        self._random = random
        self._probability = probability
        self.nodes: frozenset[str] = frozenset()
        """The hosts between which requests arrive twice; nobody else's do."""
        self.is_over = False
        self.counts: dict[str, int] = {}
        self._next_at: dict[tuple[str, str], float] = {}

    def choose(self, source: str, target: str, data: bytes, now: float) -> Repeat | None:
        """Decide whether a client's request that begins with these bytes arrives twice."""
        nodes = self.nodes
        if self.is_over or source == target or source not in nodes or target not in nodes:
            return None
        if not _is_whole(data):
            return None
        key = int.from_bytes(data[4:6], "big")
        if key in _OF_LOGINS or key not in _NAMES:
            return None
        probability = self._probability * (FREQUENT_SHARE if key in _FREQUENT else 1.0)
        if self._random.random() >= probability or now < self._next_at.get((source, target), 0.0):
            return None
        self._next_at[source, target] = now + REPEAT_SECONDS_MIN
        late_seconds = 0.0
        if key not in _NEVER_LATE and self._random.random() < 0.5:
            late_seconds = self._random.uniform(0.02, self._random.choice(LATE_SECONDS_MAX))
        repeat = Repeat(_NAMES[key], data[8:12], late_seconds)
        what = f"{repeat.api} {'late' if repeat.is_late else 'answered'}"
        self.counts[what] = self.counts.get(what, 0) + 1
        return repeat


def _is_whole(data: bytes) -> bool:
    """True if bytes are whole requests: a torn connection sends pieces of them, whose first bytes are no header."""
    position = 0
    while len(data) - position >= _HEAD_BYTES:
        size = int.from_bytes(data[position : position + 4], "big")
        if size < _HEAD_BYTES - 4:
            return False
        position += 4 + size
    return position == len(data) > 0


def answers(data: bytes, correlation_id: bytes) -> bool:
    """True if an answer to this request begins in the bytes that a server sends."""
    position = 0
    while len(data) - position >= 8:
        if data[position + 4 : position + 8] == correlation_id:
            return True
        position += 4 + int.from_bytes(data[position : position + 4], "big")
    return False
