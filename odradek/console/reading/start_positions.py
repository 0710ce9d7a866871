"""Finds the offsets at which a reading of a topic begins and ends. SHELL.

The word `from` is one of `earliest`, `latest`, `offset:N`, `time:MS`, `newest:N`, and `at:P:N,P:N` with an offset for
each partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from odradek.client.admin.admin_offsets import OffsetSpan, offset_spans, offsets_at
from odradek.console.reading.scan import Span
from odradek.console.shapes.view_errors import ViewError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.shells.blocking import Client

__all__ = [
    "PLACES_PATTERN",
    "START_PATTERN",
    "Start",
    "find_spans",
    "parse_places",
    "parse_start",
    "places_text",
]

ASK_SECONDS_MAX = 10.0
PLACES_MAX = 1000
"""The most partitions whose places an address may name."""
_INT64_MAX = (1 << 63) - 1
PLACES_PATTERN = "[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*"
START_PATTERN = (
    f"^(earliest|latest|(offset|time):[0-9]{{1,18}}|newest:([1-9][0-9]{{0,2}}|1000)|at:({PLACES_PATTERN})?)$"
)
"""The pattern of the word `from`, for fields of queries."""
_KINDS = "earliest, latest, offset:N, time:MS, newest:N, at:PARTITION:OFFSET,..."


@attrs.frozen
class Start:
    """The place to begin at."""

    kind: str
    """earliest, latest, offset, time, newest, or at."""
    number: int = 0
    """The offset, the time in milliseconds since 1970, or the number of records."""
    places: Mapping[int, int] = attrs.field(factory=dict)
    """The offset of each partition, for `at`."""


def parse_start(text: str) -> Start:
    """Parse the word `from`. Raises `ViewError`."""
    kind, colon, rest = text.partition(":")
    if kind in ("earliest", "latest") and not colon:
        return Start(kind)
    if kind == "at":
        return Start(kind, places=parse_places(rest))
    if kind in ("offset", "time", "newest") and rest.isascii() and rest.isdecimal() and len(rest) < 20:
        number = int(rest)
        if number <= _INT64_MAX and (kind != "newest" or 1 <= number <= 1000):
            return Start(kind, number)
    raise ViewError(400, "INVALID_START", f"`from` is one of {_KINDS}; newest takes 1 to 1000")


def parse_places(text: str) -> dict[int, int]:
    """Parse `PARTITION:OFFSET,...`. Raises `ViewError`."""
    found: dict[int, int] = {}
    for each in text.split(",")[: PLACES_MAX + 1] if text else ():
        index, _, offset = each.partition(":")
        if not (index.isascii() and index.isdecimal() and offset.isascii() and offset.isdecimal()):
            raise ViewError(400, "INVALID_START", "places are PARTITION:OFFSET, separated by commas")
        if len(index) > 9 or len(offset) > 18 or len(found) >= PLACES_MAX:
            raise ViewError(400, "INVALID_START", f"places are numbers, of at most {PLACES_MAX} partitions")
        found[int(index)] = int(offset)
    return found


def places_text(places: Mapping[int, int]) -> str | None:
    """Write places as `parse_places` reads them; None if they are too many."""
    if len(places) > PLACES_MAX:
        return None
    return ",".join(f"{index}:{offset}" for index, offset in sorted(places.items()))


def find_spans(
    client: Client, topic: str, partition: int | None, start: Start, before: Mapping[int, int]
) -> tuple[dict[int, OffsetSpan], dict[int, Span]]:
    """Look up the range of each partition, and where a reading of it begins and ends.

    `before` has the offsets before which a reading ends. A partition whose range is unknown has a failure.
    Raises `KafkaError` (for an unknown topic), `ClientError`, and `ViewError` for an unknown partition.
    """
    found = client.metadata([topic]).topic(topic)
    if partition is not None and partition not in found.partitions:
        count = len(found.partitions)
        raise ViewError(404, "UNKNOWN_PARTITION", f"the topic has no partition {partition} (it has {count})")
    indexes = sorted(found.partitions) if partition is None else [partition]
    if start.kind == "at":
        indexes = [index for index in indexes if index in start.places]
    keys = [TopicPartition(topic, index) for index in indexes]
    outcomes = client.run(offset_spans(client.core, keys, timeout=ASK_SECONDS_MAX))
    ranges = {key.partition: each for key, each in outcomes.items() if isinstance(each, OffsetSpan)}
    begins = _begins(client, topic, ranges, start)
    spans: dict[int, Span] = {}
    for key, outcome in outcomes.items():
        index = key.partition
        if isinstance(outcome, OffsetSpan):
            end = min(outcome.end, before.get(index, outcome.end))
            spans[index] = Span(min(max(begins[index], outcome.start), end), end)
        else:
            spans[index] = Span(0, 0, failure=str(outcome))
    return ranges, spans


def _begins(client: Client, topic: str, ranges: Mapping[int, OffsetSpan], start: Start) -> dict[int, int]:
    match start.kind:
        case "earliest" | "newest":
            return {index: each.start for index, each in ranges.items()}
        case "latest":
            return {index: each.end for index, each in ranges.items()}
        case "offset":
            return dict.fromkeys(ranges, start.number)
        case "at":
            return {index: start.places[index] for index in ranges}
    wanted = {TopicPartition(topic, index): start.number for index in ranges}
    found = client.run(offsets_at(client.core, wanted, time.monotonic() + ASK_SECONDS_MAX))
    begins = {}
    for index, each in ranges.items():
        offset = found[TopicPartition(topic, index)]
        begins[index] = offset if isinstance(offset, int) and offset >= 0 else each.end
    return begins
