"""The messages of a topic: a search that goes on as events, one record, and downloads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import attrs

from odradek.cli.streams.record_format import json_line
from odradek.client.admin.admin_offsets import OffsetSpan
from odradek.client.shells.blocking import Client
from odradek.console.decoding.decoded import FORMATS
from odradek.console.decoding.steps import STREAM_STEPS_MAX, Steps
from odradek.console.reading.found_records import Found, Tick
from odradek.console.reading.newest import NewestSearch
from odradek.console.reading.pace import Pace
from odradek.console.reading.record_filters import PATTERN_CHARACTERS_MAX, RecordFilter, record_filter
from odradek.console.reading.scan import Progress, Scan, Span
from odradek.console.reading.shown_records import ShownRecord, show
from odradek.console.reading.start_positions import (
    PLACES_PATTERN,
    START_PATTERN,
    find_spans,
    parse_places,
    parse_start,
    places_text,
)
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import TOPIC_NAME, about
from odradek.console.shapes.view_errors import ViewError
from odradek.console.streams.thread_stream import ByteStream, EventStream

__all__ = [
    "DownloadQuery",
    "MessageQuery",
    "MessagesQuery",
    "SearchEnd",
    "SearchProgress",
    "download",
    "message",
    "messages",
]

LISTED_CHARACTERS_MAX = 4096
"""The most characters of a key or value in a list."""
WHOLE_CHARACTERS_MAX = 2 << 20
TAIL_PARTITIONS_MAX = 32
TAIL_SECONDS_MAX = 600.0
_WITHOUT_LIMIT = 1 << 62
_PROGRESS_SECONDS = 0.5
_FAILED_MAX = 20
"""The most failed partitions in the progress. The end of a search has all of them."""
_FORMATS = about("the format of the keys", choices=FORMATS)
_PARTITION_MAX = (1 << 31) - 1
_HEADER = r"^[^=\u0000-\u001f\u007f]*=[^\u0000-\u001f\u007f]*$"


@attrs.frozen(kw_only=True)
class MessagesQuery:
    """What to read."""

    topic: str = attrs.field(metadata=about("the name of a topic", pattern=TOPIC_NAME))
    partition: int | None = attrs.field(
        default=None,
        metadata=about("the partition; without it, all of them", minimum=0, maximum=_PARTITION_MAX),
    )
    from_: str = attrs.field(
        default="newest:50",
        metadata=about(
            "where to begin: earliest, latest, offset:N, time:MS, newest:N, or at:PARTITION:OFFSET,...",
            maximum=12_000,
            pattern=START_PATTERN,
        ),
    )
    before: str = attrs.field(
        default="",
        metadata=about(
            "where to end, as PARTITION:OFFSET,...; the `next` of an older search",
            maximum=12_000,
            pattern=f"^({PLACES_PATTERN})?$",
        ),
    )
    filter_: str = attrs.field(
        default="",
        metadata=about(
            "a regular expression (RE2) that the value, or its text, contains", maximum=PATTERN_CHARACTERS_MAX
        ),
    )
    key: str | None = attrs.field(default=None, metadata=about("the exact key"))
    header: str | None = attrs.field(default=None, metadata=about("a header as name=value", pattern=_HEADER))
    key_format: str = attrs.field(default="auto", metadata=_FORMATS)
    value_format: str = attrs.field(
        default="auto", metadata=about("the format of the values", choices=FORMATS)
    )
    limit: int = attrs.field(
        default=50, metadata=about("the most records; a tail has no limit", minimum=1, maximum=1000)
    )
    markers: bool = attrs.field(
        default=True, metadata=about("1 shows the markers of transactions, unless there is a filter")
    )
    tail: bool = attrs.field(
        default=False, metadata=about("1 goes on with records as they are written, for ten minutes")
    )


@attrs.frozen(kw_only=True)
class FailedPartition:
    """A partition that was not read to its end, or that is silent now."""

    partition: int = attrs.field(metadata=about("the partition"))
    sentence: str = attrs.field(metadata=about("the reason"))


@attrs.frozen(kw_only=True)
class SearchProgress:
    """The progress of a search."""

    scanned: int = attrs.field(metadata=about("records that were read"))
    scanned_bytes: int = attrs.field(metadata=about("bytes that were fetched, as they are on disk"))
    total: int | None = attrs.field(
        metadata=about("offsets to read at most; null if new records are awaited")
    )
    found: int = attrs.field(metadata=about("records that were found"))
    failed: Sequence[FailedPartition] = attrs.field(
        metadata=about("partitions that give no answer now, at most 20; those of a tail are asked again")
    )


@attrs.frozen(kw_only=True)
class SearchEnd:
    """The end of a search."""

    reason: str = attrs.field(
        metadata=about(
            "end: all was read; limit: enough was found; budget: it took too long; failed: see `failed`",
            choices=("end", "limit", "budget", "failed"),
        )
    )
    next_: str | None = attrs.field(
        metadata=about(
            "the word `from` of a search that goes on; after newest:N the word `before`; null: nothing is left"
        )
    )
    failed: Sequence[FailedPartition] = attrs.field(metadata=about("partitions that could not be read"))


def messages(session: Session, query: MessagesQuery, stream: EventStream) -> None:
    """Search the messages of a topic. Sends the events `record`, `progress`, and at last `end`.

    The search ends when its reader goes away. It is bounded in bytes and seconds, a tail only in seconds; `next` goes
    on.
    """
    start = parse_start(query.from_)
    fits = _filter_of(session, query)
    formats = (query.key_format, query.value_format)
    with session.open_client() as client:
        ranges, spans = find_spans(client, query.topic, query.partition, start, parse_places(query.before))
        if query.tail:
            _begin_tail(spans)
        search = _Search(client, query, ranges, spans, fits, session.pace)
        steps = Steps(STREAM_STEPS_MAX, "this search has decoded as much as it may: open the record")
        told_at = time.monotonic()
        over_at = told_at + TAIL_SECONDS_MAX
        for item in search.run():
            if isinstance(item, Found):
                stream.send("record", show(item, session.decoders, formats, LISTED_CHARACTERS_MAX, steps))
            if stream.is_over:
                return
            if time.monotonic() - told_at > _PROGRESS_SECONDS:
                told_at = time.monotonic()
                stream.send("progress", search.told())
            if query.tail and time.monotonic() > over_at:
                break
        stream.send("progress", search.told())
        stream.send("end", search.end())


class _Search:
    """A search in either direction."""

    def __init__(
        self,
        client: Client,
        query: MessagesQuery,
        ranges: dict[int, OffsetSpan],
        spans: dict[int, Span],
        fits: RecordFilter | None,
        pace: Pace,
    ) -> None:
        self._total = None if query.tail else sum(span.left for span in spans.values())

        def make_scan(of: dict[int, Span]) -> Scan:
            return Scan(client, query.topic, of, fits, with_markers=query.markers, pace=pace)

        start = parse_start(query.from_)
        self._limit = _WITHOUT_LIMIT if query.tail else query.limit
        self._newest: NewestSearch | None = None
        self._scan: Scan | None = None
        if start.kind == "newest" and not query.tail:
            self._newest = NewestSearch(lambda of: make_scan(dict(of)), ranges, spans, start.number)
        else:
            self._scan = make_scan(spans)

    def run(self) -> Iterator[Found | Tick]:
        """Yield findings and ticks."""
        if self._newest is not None:
            return self._newest.run()
        assert self._scan is not None
        return self._scan.run(self._limit)

    def told(self) -> SearchProgress:
        """Return the progress."""
        progress = self._progress
        return SearchProgress(
            scanned=progress.scanned,
            scanned_bytes=progress.scanned_bytes,
            total=self._total,
            found=progress.found,
            failed=_failed(self._failures)[:_FAILED_MAX],
        )

    def end(self) -> SearchEnd:
        """Return why the search has ended, and how to go on."""
        if self._newest is not None:
            places, reason = self._newest.places, self._newest.reason
            text = places_text(places) if places else None
        else:
            assert self._scan is not None
            spans = self._scan.spans
            places = {index: span.position for index, span in spans.items() if not span.is_done}
            text = places_text(places) if places else None
            text = None if text is None else f"at:{text}"
            # A tail that was broken off has no reason of its own.
            reason = self._scan.reason or "budget"
        return SearchEnd(reason=reason, next_=text, failed=_failed(self._failures))

    @property
    def _failures(self) -> dict[int, str]:
        if self._newest is not None:
            return self._newest.failures
        assert self._scan is not None
        return {index: span.failure for index, span in self._scan.spans.items() if span.failure is not None}

    @property
    def _progress(self) -> Progress:
        if self._newest is not None:
            return self._newest.progress
        assert self._scan is not None
        return self._scan.progress


def _failed(failures: Mapping[int, str]) -> list[FailedPartition]:
    return [FailedPartition(partition=index, sentence=text) for index, text in sorted(failures.items())]


def _begin_tail(spans: dict[int, Span]) -> None:
    """Let the partitions be read for ever. Raises `ViewError` if they are too many."""
    if len(spans) > TAIL_PARTITIONS_MAX:
        raise ViewError(
            400,
            "TOO_MANY_PARTITIONS",
            f"at most {TAIL_PARTITIONS_MAX} partitions can be followed: choose one",
        )
    for span in spans.values():
        span.end = None


def _filter_of(session: Session, query: MessagesQuery | DownloadQuery) -> RecordFilter | None:
    headers = [] if query.header is None else [query.header]
    return record_filter(query.topic, query.filter_, query.key, headers, session.decoders)


@attrs.frozen(kw_only=True)
class MessageQuery:
    """The place of a record."""

    topic: str = attrs.field(metadata=about("the name of a topic", pattern=TOPIC_NAME))
    partition: int = attrs.field(metadata=about("the partition", minimum=0, maximum=_PARTITION_MAX))
    offset: int = attrs.field(metadata=about("the offset", minimum=0))
    key_format: str = attrs.field(default="auto", metadata=_FORMATS)
    value_format: str = attrs.field(
        default="auto", metadata=about("the format of the value", choices=FORMATS)
    )


def message(session: Session, query: MessageQuery) -> ShownRecord:
    """Show one record as a whole, up to two million characters of its key and its value."""
    found = _one(session, query.topic, query.partition, query.offset)
    return show(found, session.decoders, (query.key_format, query.value_format), WHOLE_CHARACTERS_MAX)


def _one(session: Session, topic: str, partition: int, offset: int) -> Found:
    """Read the record at an offset. Raises `ViewError` if there is none."""
    with session.open_client() as client:
        start = parse_start(f"offset:{offset}")
        _, spans = find_spans(client, topic, partition, start, {})
        span = spans[partition]
        if span.failure is not None:
            raise ViewError(503, "PARTITION_NOT_READ", span.failure)
        if span.position == offset and not span.is_done:
            span.end = offset + 1
            scan = Scan(client, topic, spans, None, pace=session.pace)
            for item in scan.run(1):
                if isinstance(item, Found) and item.offset == offset:
                    return item
    raise ViewError(
        404,
        "NO_RECORD",
        f"{topic}-{partition} has no record at offset {offset}: it was deleted or compacted away",
    )


@attrs.frozen(kw_only=True)
class DownloadQuery:
    """What to download: a part of one record, or the records of a search."""

    topic: str = attrs.field(metadata=about("the name of a topic", pattern=TOPIC_NAME))
    partition: int | None = attrs.field(
        default=None, metadata=about("the partition", minimum=0, maximum=_PARTITION_MAX)
    )
    offset: int | None = attrs.field(default=None, metadata=about("the offset of one record", minimum=0))
    part: str = attrs.field(
        default="json",
        metadata=about(
            "key or value: its bytes; json: lines that `odradek produce --input json` reads",
            choices=("key", "value", "json"),
        ),
    )
    from_: str = attrs.field(
        default="earliest",
        metadata=about("where to begin, without an offset", maximum=12_000, pattern=START_PATTERN),
    )
    filter_: str = attrs.field(
        default="", metadata=about("a regular expression (RE2)", maximum=PATTERN_CHARACTERS_MAX)
    )
    key: str | None = attrs.field(default=None, metadata=about("the exact key"))
    header: str | None = attrs.field(default=None, metadata=about("a header as name=value", pattern=_HEADER))
    limit: int = attrs.field(default=10_000, metadata=about("the most records", minimum=1, maximum=1_000_000))


def download(session: Session, query: DownloadQuery, stream: ByteStream) -> None:
    """Download the key or value of one record, or the records of a search as lines of JSON.

    Markers are left out, and so are records of aborted and open transactions. If the scan's budget ends, or records
    cannot be read, the connection is cut after all that was read. Raises `ViewError`.
    """
    if query.offset is not None:
        if query.partition is None:
            raise ViewError(400, "INVALID_QUERY", "with an offset, the word 'partition' is needed")
        _download_one(session, query, query.partition, query.offset, stream)
        return
    if query.part != "json":
        raise ViewError(400, "INVALID_QUERY", "bytes are those of one record: the word 'offset' is missing")
    start = parse_start(query.from_)
    if start.kind == "newest":
        raise ViewError(400, "INVALID_QUERY", "a download begins at an offset or a time, not with newest")
    fits = _filter_of(session, query)
    with session.open_client() as client:
        _, spans = find_spans(client, query.topic, query.partition, start, {})
        scan = Scan(client, query.topic, spans, fits, with_markers=False, pace=session.pace)
        stream.begin(f"{query.topic}.jsonl", "application/x-ndjson")
        lines: list[bytes] = []
        failed: list[str] = []
        for item in scan.run(query.limit):
            if isinstance(item, Found) and item.failure is not None and not failed:
                failed.append(f"{query.topic}-{item.partition} at offset {item.offset}: {item.failure}")
            if isinstance(item, Found) and item.record is not None and _is_committed(item):
                lines.append(json_line(item.record))
            if len(lines) >= 500 or (lines and isinstance(item, Tick)):
                stream.write(b"".join(lines))
                lines.clear()
            if stream.is_over:
                return
        if lines:
            stream.write(b"".join(lines))
        failed += [span.failure for span in scan.spans.values() if span.failure is not None]
        if failed:
            raise ViewError(503, "PARTITION_NOT_READ", failed[0])
        if scan.reason == "budget":
            raise ViewError(
                503, "TOO_MUCH_TO_READ", "the download has read all that it may: ask for less at once"
            )


def _is_committed(found: Found) -> bool:
    return found.transaction is None or found.transaction.state.value == "committed"


def _download_one(
    session: Session, query: DownloadQuery, partition: int, offset: int, stream: ByteStream
) -> None:
    record = _one(session, query.topic, partition, offset).record
    if record is None:
        raise ViewError(404, "NO_RECORD", "at this offset is a marker, or a record that cannot be read")
    name = f"{query.topic}-{partition}-{offset}"
    if query.part == "json":
        stream.begin(f"{name}.json", "application/json")
        stream.write(json_line(record))
        return
    data = record.key if query.part == "key" else record.value
    if data is None:
        raise ViewError(404, "NO_BYTES", f"the {query.part} of the record is null")
    stream.begin(f"{name}.{query.part}.bin")
    for position in range(0, len(data), 64 * 1024):
        stream.write(data[position : position + 64 * 1024])
    if not data:
        stream.write(b"")
