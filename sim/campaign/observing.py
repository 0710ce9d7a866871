"""One run, observed for its timeline: messages, faults, elections, high watermarks. SHELL.

The trace of a run has only sizes and checksums, without contents. So this module wraps methods of connections,
partitions and the simulated cluster while the run lasts, in a separate process (`sim.campaign.worker`). The wrappers
neither draw random numbers nor wait, so the run and its digest stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from odradek.data_plane.replication.partition import Partition
from odradek.wire.api_keys import ApiKey
from sim.campaign.timeline import Timeline
from sim.machine.links import Links
from sim.machine.network import Fabric, SimConn
from sim.machine.world import World
from sim.options import RunOptions
from sim.replay import replay_command
from sim.run import RunResult, is_event, run

LENGTH_BYTES = 4
MESSAGES_MAX = 60_000
HIGH_WATERMARKS_MAX = 30_000

__all__ = ["observe", "write_timeline"]


def write_timeline(seed: int, options: RunOptions, commit: str, path: str) -> RunResult:
    """Run a seed, and write the run's timeline as one HTML file."""
    result, timeline = observe(seed, options)
    Path(path).write_text(timeline.to_html(result, replay_command(seed, options), commit))
    return result


def observe(seed: int, options: RunOptions) -> tuple[RunResult, Timeline]:
    """Run a seed, and record its timeline."""
    timeline = Timeline()

    def on_line(word: str, line: str) -> None:
        if is_event(word):
            when, who, rest = line.split(" ", 2)
            timeline.event(float(when), who, word, rest[len(word) + 1 :])

    observer = _Observer(timeline)
    with observer.watching():
        result = run(seed, options, trace=on_line)
    return result, timeline


@attrs.define
class _Stream:
    """One direction of a connection: counts of bytes, and the frames that have not arrived completely."""

    sent: int = 0
    received: int = 0
    buffer: bytearray = attrs.Factory(bytearray)
    under_way: list[tuple[int, float, int, int]] = attrs.Factory(list)
    """For each frame: (end position in the stream, virtual time sent, API key or -1 if unknown, size in bytes)."""


class _Observer:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._fabric: Fabric | None = None
        self._streams: dict[SimConn, _Stream] = {}
        self._asked: dict[SimConn, dict[int, int]] = {}
        """For the client's end of each connection, the API keys of its requests by correlation id."""
        self._owners: dict[Partition, tuple[str, int]] = {}
        self._high_watermarks = 0

    @property
    def _now(self) -> float:
        return 0.0 if self._fabric is None else self._fabric.agenda.now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record events while the context lasts."""
        with ExitStack() as stack:
            for owner, name, after in (
                (SimConn, "send", self._sent),
                (SimConn, "recv_into", self._received),
                (Links, "cut", self._cut),
                (Links, "heal", self._healed),
                (Links, "slow", self._slowed),
                (Links, "narrow", self._slowed),
                (Fabric, "__init__", self._made),
                (World, "pause", self._paused),
                (World, "resume", self._resumed),
                (Partition, "apply", self._applied),
                (Partition, "_raise_high_watermark", self._raised),
                (Partition, "follow", self._raised),
            ):
                stack.enter_context(_wrapped(owner, name, after))
            yield

    # --- messages

    def _sent(self, conn: SimConn, result: Any, chunks: Any, more: bool = False) -> None:
        stream = self._streams.setdefault(conn, _Stream())
        stream.buffer += b"".join(chunks)[:result]
        buffer = stream.buffer
        while len(buffer) >= LENGTH_BYTES:
            size = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "big")
            if len(buffer) < size:
                break
            stream.sent += size
            api = self._api_of(conn, buffer)
            stream.under_way.append((stream.sent, self._now, api, size))
            del buffer[:size]

    def _api_of(self, conn: SimConn, frame: bytearray) -> int:
        """Return the API key of a frame. A request names it in its header, a response has the correlation id of its
        request.
        """
        if conn.name.endswith(">"):
            api = int.from_bytes(frame[4:6], "big")
            correlation_id = int.from_bytes(frame[8:12], "big")
            self._asked.setdefault(conn, {})[correlation_id] = api
            return api
        correlation_id = int.from_bytes(frame[4:8], "big")
        return self._asked.get(conn.peer, {}).pop(correlation_id, -1)

    def _received(self, conn: SimConn, result: Any, buffer: Any) -> None:
        if not result:
            return
        stream = self._streams.get(conn.peer)
        if stream is None:
            return
        stream.received += result
        while stream.under_way and stream.under_way[0][0] <= stream.received:
            _, when, api, size = stream.under_way.pop(0)
            if len(self._timeline.messages) < MESSAGES_MAX:
                self._timeline.message(
                    when,
                    self._now,
                    conn.peer.node.host,
                    conn.node.host,
                    _name_of(api),
                    size,
                    is_answer=conn.name.endswith(">"),
                )

    # --- faults

    def _made(self, fabric: Fabric, _: Any, *args: Any) -> None:
        self._fabric = fabric

    def _cut(self, _: Links, __: Any, source: str, target: str) -> None:
        self._timeline.begin(self._now, source, "cut", f"{source} \N{RIGHTWARDS ARROW} {target}")

    def _healed(self, _: Links, __: Any, source: str, target: str) -> None:
        self._timeline.end(self._now, source, "cut", f"{source} \N{RIGHTWARDS ARROW} {target}")

    def _slowed(self, _: Links, __: Any, source: str, target: str, how_much: float) -> None:
        text = f"{source} \N{RIGHTWARDS ARROW} {target}"
        if 0 < how_much < float("inf"):
            self._timeline.begin(self._now, source, "slow", text)
        else:
            self._timeline.end(self._now, source, "slow", text)

    def _paused(self, _: World, __: Any, name: str) -> None:
        self._timeline.begin(self._now, name, "pause", "paused")

    def _resumed(self, _: World, __: Any, name: str) -> None:
        self._timeline.end(self._now, name, "pause", "paused")

    # --- partitions

    def _applied(
        self, partition: Partition, _: Any, image: Any, node_id: int, *, may_lead: bool = True
    ) -> None:
        host = f"node-{node_id}"
        before = self._owners.get(partition)
        self._owners[partition] = (host, image.leader_epoch)
        if partition.is_leader and (before is None or before[1] != image.leader_epoch):
            name = f"{partition.log.topic}-{partition.log.partition}"
            isr = ",".join(map(str, image.isr))
            self._timeline.event(
                self._now, host, "leads", f"{name} in epoch {image.leader_epoch}, in sync {isr}"
            )

    def _raised(self, partition: Partition, *_: Any) -> None:
        owner = self._owners.get(partition)
        if owner is None or self._high_watermarks >= HIGH_WATERMARKS_MAX:
            return
        name = f"{partition.log.topic}-{partition.log.partition}"
        if self._timeline.high_watermark(self._now, owner[0], name, partition.log.high_watermark):
            self._high_watermarks += 1


@contextmanager
def _wrapped(owner: type, name: str, after: Callable[..., None]) -> Iterator[None]:
    """Wrap a method while the context lasts: `after(self, result, *arguments)` is called after each call."""
    original = owner.__dict__[name]

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        after(self, result, *args, **kwargs)
        return result

    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _name_of(api: int) -> str:
    try:
        return "".join(word.capitalize() for word in ApiKey(api).name.split("_"))
    except ValueError:
        return "unknown" if api < 0 else f"api {api}"
