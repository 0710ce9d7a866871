"""The links between simulated hosts, and their faults: cuts, losses, delays and refusals. `sim.machine.network` is
built on this module.

A link is one direction between two hosts. It may have any combination of these faults:

* cut: all segments are held until the link is healed, since TCP would retransmit them;
* slow: each segment takes up to some seconds longer;
* narrow: all connections together have a limit of bytes per second; later bytes wait behind earlier bytes;
* closed: new connections are refused at once, or never answered; open connections continue.

In addition the weather may lose a segment, which delays the stream until the segment is sent again.

The ends of a connection do not notice a cut link. `sim.machine.network` has the faults of single connections:
resets, and silently lost connections.

`Repeats` chooses the requests between nodes that arrive twice. A client that loses its connection sends its request
again on the next connection. There are two ways in which the first request arrives, too:

* `answered`: the server handles the request at once, and the answer is lost with the connection;
* `late`: only the client loses the connection. The bytes of the request are delayed, and reach the server on the old
  connection, which still has the client's login. By then the server has handled the repeated request and later
  requests. The answer is lost.
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
"""Linux's shortest wait in seconds before a segment is sent again. The wait doubles with each further loss."""
LOSSES_MAX = 6
"""The largest number of successive losses of one segment. After that the segment arrives."""

REPEAT_SECONDS_MIN = 1.0
"""The shortest time in seconds between two requests that arrive twice, for each pair of nodes. It lets the nodes make
progress.
"""
LATE_SECONDS_MAX = (0.2, 2.0, 15.0)
"""Choices for the longest delay of a late request, in seconds. All choices are equally probable."""
FREQUENT_SHARE = 0.02
"""The probability that a request arrives twice is multiplied by this factor for the frequent APIs (`_FREQUENT`)."""
_FREQUENT = frozenset((ApiKey.FETCH, ApiKey.BROKER_HEARTBEAT))
_NAMES: Mapping[int, str] = {key.value: key.name.lower() for key in ApiKey}
_OF_LOGINS = frozenset((ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
_NEVER_LATE = frozenset((ApiKey.ENVELOPE,))
"""APIs whose requests are never late. An envelope has a client's change without a sequence number, so a late copy
would undo a later change.
"""
_HEAD_BYTES = 12
"""The size of the fields with which each request begins: length, API, version and correlation id."""

Closed = Literal["refuses", "swallows"]

__all__ = ["Line", "Links", "Repeat", "Repeats"]


@attrs.define(eq=False)
class Line:
    """One direction of a connection, which keeps its segments in order. `last_arrival` is in virtual seconds."""

    last_arrival: float = 0.0


@attrs.define(eq=False)
class _Link:
    """The state of one direction between two hosts."""

    held: list[Callable[[], None]] | None = None
    """Transmissions that wait until the link is healed; None if it is not cut."""
    slow_seconds: float = 0.0
    bytes_per_second: float = math.inf
    busy_until: float = 0.0
    closed: Closed | None = None


class Links:
    """All links of a simulation."""

    def __init__(self, agenda: Agenda, weather: Weather, random: Random) -> None:
        self.agenda = agenda
        self.weather = weather
        self.random = random
        self._links: dict[tuple[str, str], _Link] = {}
        self._refused: set[tuple[str, str]] = set()
        """The links that have refused new connections at some time."""

    def _link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link())

    def cut(self, source: str, target: str) -> None:
        """Hold all segments from `source` to `target`, in this direction only."""
        link = self._link(source, target)
        if link.held is None:
            link.held = []

    def heal(self, source: str, target: str) -> None:
        """Send the segments that were held, and let later segments pass."""
        link = self._link(source, target)
        held, link.held = link.held, None
        for send in held or ():
            send()

    def cuts(self) -> list[tuple[str, str]]:
        """List the (source, target) pairs that are cut."""
        return [ends for ends, link in self._links.items() if link.held is not None]

    def wrong(self) -> Iterator[tuple[tuple[str, str], bool]]:
        """Yield each (source, target) with a fault, and whether it is cut."""
        for ends, link in self._links.items():
            if link.held is not None:
                yield ends, True
            elif link.slow_seconds or link.closed is not None or link.bytes_per_second != math.inf:
                yield ends, False

    def slow(self, source: str, target: str, seconds: float) -> None:
        """Let each segment from `source` to `target` take up to `seconds` longer; 0 removes the fault."""
        self._link(source, target).slow_seconds = seconds

    def narrow(self, source: str, target: str, bytes_per_second: float) -> None:
        """Limit the bytes per second of all connections from `source` to `target` together; infinity removes the
        limit.
        """
        self._link(source, target).bytes_per_second = bytes_per_second

    def close_link(self, source: str, target: str, how: Closed | None) -> None:
        """Refuse ("refuses") or ignore ("swallows") new connections from `source` to `target`; None accepts them
        again.
        """
        self._link(source, target).closed = how
        if how == "refuses":
            self._refused.add((source, target))

    def has_refused(self, source: str, target: str) -> bool:
        """True if new connections from `source` to `target` were refused at some time by a fault of the link."""
        return (source, target) in self._refused

    def closed(self, source: str, target: str) -> Closed | None:
        """Return how new connections fail ("refuses" or "swallows"); None if they are accepted."""
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
        """Call `arrive` at `target` after a latency; with `line`, in the order of that connection. `size` is in bytes."""
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
        """Draw how many seconds a TCP segment is delayed by losses and retransmissions."""
        seconds, wait = 0.0, RETRANSMISSION_SECONDS_MIN
        for _ in range(LOSSES_MAX):
            if self.random.random() >= self.weather.loss_probability:
                break
            seconds += wait
            wait *= 2
        return seconds


@attrs.frozen
class Repeat:
    """A request that arrives twice. The first copy arrives at once and its answer is lost, or it arrives
    `late_seconds` late.
    """

    api: str
    correlation_id: bytes
    late_seconds: float

    @property
    def is_late(self) -> bool:
        return self.late_seconds > 0


class Repeats:
    """The choice of requests between nodes that arrive twice. `counts` has the number of these requests, by API and by
    the way in which they arrive.
    """

    def __init__(self, random: Random, probability: float) -> None:
        self._random = random
        self._probability = probability
        self.nodes: frozenset[str] = frozenset()
        """The hosts between which requests may arrive twice."""
        self.is_over = False
        self.counts: dict[str, int] = {}
        self._next_at: dict[tuple[str, str], float] = {}

    def choose(self, source: str, target: str, data: bytes, now: float) -> Repeat | None:
        """Decide whether a client's request that begins with these bytes arrives twice; None: it does not."""
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
    """True if the bytes are complete requests. A torn connection sends parts of requests, and such a part may begin
    without a header.
    """
    position = 0
    while len(data) - position >= _HEAD_BYTES:
        size = int.from_bytes(data[position : position + 4], "big")
        if size < _HEAD_BYTES - 4:
            return False
        position += 4 + size
    return position == len(data) > 0


def answers(data: bytes, correlation_id: bytes) -> bool:
    """True if the bytes of a server contain the start of the answer to this request."""
    position = 0
    while len(data) - position >= 8:
        if data[position + 4 : position + 8] == correlation_id:
            return True
        position += 4 + int.from_bytes(data[position : position + 4], "big")
    return False
