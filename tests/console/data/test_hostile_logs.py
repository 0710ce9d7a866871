"""Searches in logs that a hostile or broken producer has filled: damage, bombs, deep and huge values, endless markers."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace

import attrs
import pytest

from odradek.console.decoding.decoders import Decoders, DecodingSettings
from odradek.console.reading import scan as scan_module
from odradek.console.reading.batch_fetches import FetchedBatches
from odradek.console.reading.found_records import (
    DECOMPRESSED_BYTES_MAX,
    HELD_BYTES_MAX,
    RECORD_HEADERS_MAX,
    Found,
    PartitionFindings,
    take_findings,
)
from odradek.console.reading.pace import Pace
from odradek.console.reading.scan import Scan, Span
from odradek.console.reading.shown_records import HEADERS_MAX, ShownRecord, show
from odradek.console.reading.transaction_states import (
    StableStates,
    TransactionState,
    markers_in,
    state_by_markers,
)
from odradek.console.shapes.view_errors import ViewError
from odradek.console.views import messages as messages_module
from odradek.console.views.messages import DownloadQuery, download
from odradek.wire.batches.batch_header import HEADER, HEADER_SIZE, parse_header, seal
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

DECODERS = Decoders(DecodingSettings())


def batch(
    base: int, *values: bytes | None, codec: int = 0, producer_id: int = -1, headers: int = 0
) -> bytearray:
    """Make a batch of records with these values."""
    builder = RecordBatchBuilder(
        base, codec, producer_id=producer_id, producer_epoch=0, is_transactional=producer_id >= 0
    )
    for value in values:
        builder.append(1_000, b"key", value, [(f"h{n}", b"v") for n in range(headers)])
    return builder.build()


def marker(offset: int, producer_id: int, *, is_commit: bool) -> bytearray:
    """Make the marker of a transaction at this offset."""
    data = build_marker(producer_id, 0, 0, is_commit=is_commit, timestamp_ms=1_000)
    data[:8] = offset.to_bytes(8, "big")
    return data


class Log:
    """A partition's log as one string of batches. It stands in for a client, whose only operations are fetches."""

    def __init__(self, *batches: bytes | bytearray, stable: int | None = None, aborted: object = ()) -> None:
        self.batches = [bytes(each) for each in batches]
        self.end = max(parse_header(each).next_offset for each in self.batches)
        self.stable = self.end if stable is None else stable
        self.aborted = list(aborted)
        self.fetches = 0
        self.core = self

    def fetch(self, offset: int, only_stable: bool) -> FetchedBatches:
        """Return the batches from an offset on."""
        self.fetches += 1
        end = self.stable if only_stable else self.end
        found = [each for each in self.batches if offset < parse_header(each).next_offset <= end]
        return FetchedBatches(
            memoryview(b"".join(found)), self.end, self.stable, self.aborted if only_stable else []
        )


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[ShownRecord], Scan]]:
    """Return a function that searches a log."""

    def fetch(
        log: Log, offsets: Mapping[TopicPartition, int], *, only_stable: bool, wait_ms: int, deadline: float
    ) -> dict[TopicPartition, FetchedBatches]:
        return {key: log.fetch(offset, only_stable) for key, offset in offsets.items()}

    monkeypatch.setattr(scan_module, "fetch_batches", fetch)
    monkeypatch.setattr(Log, "run", lambda self, outcome: outcome, raising=False)

    def run(log: Log, limit: int = 1000, **more: object) -> tuple[list[ShownRecord], Scan]:
        scan = Scan(log, "t", {0: Span(0, log.end)}, None, **more)
        found = [item for item in scan.run(limit) if isinstance(item, Found)]
        return [show(each, DECODERS, ("auto", "auto"), 100) for each in found], scan

    return run


def test_a_damaged_batch_is_shown_with_its_reason_and_passed_over(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
) -> None:
    """The records before and behind a batch with a wrong checksum are found."""
    damaged = batch(1, b"b", b"c")
    damaged[-1] ^= 0xFF
    found, scan = search(Log(batch(0, b"a"), damaged, batch(3, b"d")))
    assert [(each.offset, each.value.text) for each in found] == [(0, "a"), (1, None), (3, "d")]
    assert "checksum" in (found[1].error or "")
    assert found[1].next_offset == 3
    assert scan.reason == "end"


def test_a_damaged_header_does_not_stop_a_search_for_ever(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
) -> None:
    """A batch whose header is no header costs bounded work, and is reported."""
    broken = batch(1, b"b")
    log = Log(batch(0, b"a"), broken)
    log.batches[1] = bytes(broken[:16]) + b"\x09" + bytes(broken[17:])
    monster = log.batches[1]
    log.fetch = lambda offset, only_stable: FetchedBatches(
        memoryview(log.batches[0] + monster if offset == 0 else monster), 2, 2, []
    )
    found, scan = search(log)
    assert [each.error is None for each in found] == [True, False]
    assert scan.reason == "end"


def test_a_bomb_is_refused_before_it_is_inflated(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
) -> None:
    """A batch of some kilobytes that would inflate to gigabytes is shown as such, and the next one is read."""
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(2 * DECOMPRESSED_BYTES_MAX >> 20))
    body += squeezer.flush()
    bomb = batch(0, b"x")
    header = parse_header(bomb)._replace(batch_length=HEADER_SIZE - 12 + len(body), attributes=1)
    bomb = bytearray(HEADER.pack(*header)) + body
    seal(bomb)
    found, _ = search(Log(bomb, batch(1, b"after")))
    assert [each.value.text for each in found] == [None, "after"]
    assert found[0].error


def test_huge_and_deep_values_are_cut(search: Callable[..., tuple[list[ShownRecord], Scan]]) -> None:
    """A value of megabytes, deep JSON, a tombstone and thousands of headers are shown in bounded texts."""
    log = Log(batch(0, b"x" * (5 << 20), b"[" * 1_000_000, None, b"\x00\xff", headers=3000))
    found, _ = search(log)
    assert [each.value.format for each in found] == ["text", "text", "null", "hex"]
    assert all(len(each.value.text or "") <= 100 for each in found)
    assert [each.value.is_cut for each in found] == [True, True, False, False]
    assert all((each.header_count, len(each.headers)) == (3000, HEADERS_MAX) for each in found)


def test_a_search_ends_with_its_budget_and_goes_on_there(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
) -> None:
    """A search that has read enough bytes ends, and its position is behind the last record that it passed on."""
    log = Log(*(batch(number, b"v" * 1000) for number in range(50)))
    limited = log.fetch

    def one_at_a_time(offset: int, only_stable: bool) -> FetchedBatches:
        whole = limited(offset, only_stable)
        size = parse_header(whole.data).size if whole.data else 0
        return FetchedBatches(
            whole.data[:size], whole.high_watermark, whole.last_stable_offset, whole.aborted
        )

    log.fetch = one_at_a_time
    found, scan = search(log, bytes_max=10_000)
    assert scan.reason == "budget"
    assert scan.spans[0].position == len(found) < 50


def test_the_time_of_the_reader_does_not_count(
    search: Callable[..., tuple[list[ShownRecord], Scan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search spends its seconds on its own work only, so that a slow reader gets all records."""
    log = Log(*(batch(number, b"v") for number in range(5)))
    whole = log.fetch
    log.fetch = lambda offset, only_stable: attrs.evolve(
        whole(offset, only_stable), data=memoryview(bytes(log.batches[offset]))
    )
    clock = [0.0]
    monkeypatch.setattr(scan_module.time, "monotonic", lambda: clock[0])
    scan = Scan(log, "t", {0: Span(0, log.end)}, None, seconds_max=10.0)
    found = 0
    for item in scan.run(1000):
        clock[0] += 100.0
        found += isinstance(item, Found)
    assert (found, scan.reason) == (5, "end")


@pytest.mark.parametrize(
    ("kind", "code"), [("damaged", "PARTITION_NOT_READ"), ("too much", "TOO_MUCH_TO_READ")]
)
def test_a_download_that_is_not_whole_ends_with_an_error(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    code: str,
) -> None:
    """A download with a damaged batch, or a spent budget, sends what was read, and then fails."""
    batches = [batch(number, b"v%d" % number) for number in range(3)]
    if kind == "damaged":
        batches[1][-1] ^= 0xFF
    log = Log(*batches)
    spans = {0: Span(0, log.end if kind == "damaged" else log.end + 1)}
    monkeypatch.setattr(messages_module, "find_spans", lambda *_: ({}, spans))
    if kind == "too much":
        monkeypatch.setattr(messages_module, "Scan", functools.partial(Scan, bytes_max=1))
    sent: list[bytes] = []
    stream = SimpleNamespace(begin=lambda *_: None, write=sent.append, is_over=False)
    session = SimpleNamespace(open_client=lambda: nullcontext(log), decoders=DECODERS, pace=Pace())
    with pytest.raises(ViewError) as caught:
        download(session, DownloadQuery(topic="t"), stream)
    assert caught.value.code == code
    values = [json.loads(line)["value"] for line in b"".join(sent).splitlines()]
    assert values == (["v0", "v2"] if kind == "damaged" else ["v0", "v1", "v2"])


def test_a_broker_that_sends_nothing_is_left(search: Callable[..., tuple[list[ShownRecord], Scan]]) -> None:
    """A partition whose broker claims records and sends none ends with a reason, after bounded attempts."""
    log = Log(batch(0, b"a"))
    log.fetch = lambda offset, only_stable: FetchedBatches(memoryview(b""), 1, 1, [])
    found, scan = search(log)
    assert found == []
    assert scan.reason == "failed"
    assert "no batch" in (scan.spans[0].failure or "")


def test_states_below_the_last_stable_offset_come_from_the_brokers_list(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
) -> None:
    """An aborted transaction ends with its marker; later ones of the same producer are judged anew."""
    log = Log(
        batch(0, b"aborted", producer_id=7),
        batch(1, b"committed", producer_id=8),
        marker(2, 7, is_commit=False),
        marker(3, 8, is_commit=True),
        batch(4, b"committed", producer_id=7),
        marker(5, 7, is_commit=True),
        aborted=[(0, 7)],
    )
    found, _ = search(log)
    states = [
        (each.value.text, each.transaction.state)
        for each in found
        if each.transaction and not each.is_control
    ]
    assert states == [("aborted", "aborted"), ("committed", "committed"), ("committed", "committed")]


def test_markers_decide_only_what_lies_before_them() -> None:
    """A record belongs to the next marker of its own producer."""
    data = memoryview(
        bytes(marker(3, 7, is_commit=False) + marker(5, 8, is_commit=True) + marker(9, 7, is_commit=True))
    )
    found = markers_in(data)
    assert state_by_markers(found, 7, 2) is TransactionState.ABORTED
    assert state_by_markers(found, 7, 4) is TransactionState.COMMITTED
    assert state_by_markers(found, 7, 10) is None
    assert state_by_markers(found, 8, 4) is TransactionState.COMMITTED
    assert state_by_markers(found, 9, 4) is None


def test_a_stable_state_begins_with_its_first_offset() -> None:
    """A batch before the first offset of an aborted transaction belongs to an earlier transaction."""
    states = StableStates([(5, 7)])
    early, late = parse_header(batch(4, b"x", producer_id=7)), parse_header(batch(5, b"x", producer_id=7))
    assert states.state_of(early, None) is TransactionState.COMMITTED
    assert states.state_of(late, None) is TransactionState.ABORTED


def test_findings_of_a_round_are_bounded() -> None:
    """A round takes at most so many records of a partition, and goes on at the first that it left."""
    fetched = FetchedBatches(memoryview(bytes(batch(0, *([b"v"] * 100)))), 100, 100, [])
    findings = PartitionFindings("t", 0, 0, 100)
    for _ in take_findings(findings, fetched, None, None, 30, with_markers=True):
        pass
    assert len(findings.found) == 30
    assert findings.next_offset == 30


def test_headers_count_as_bytes_of_a_round() -> None:
    """Records with large headers end a round like records with large values."""
    data = bytearray()
    for offset in range(10):
        builder = RecordBatchBuilder(offset, 0)
        builder.append(1_000, b"key", b"value", [("name", bytes(HELD_BYTES_MAX))])
        data += builder.build()
    findings = PartitionFindings("t", 0, 0, 10)
    for _ in take_findings(
        findings, FetchedBatches(memoryview(bytes(data)), 10, 10, []), None, None, 1000, with_markers=True
    ):
        pass
    assert (len(findings.found), findings.next_offset) == (1, 1)


def test_a_record_of_endless_headers_is_not_read(
    search: Callable[..., tuple[list[ShownRecord], Scan]],
) -> None:
    """A record whose headers take few bytes in the log, and gigabytes as objects, is shown as unreadable."""
    empty = b"\x00\x01"
    count = RECORD_HEADERS_MAX + 1
    body = b"\x00\x00\x00\x01\x01" + zigzag(count) + count * empty
    record = zigzag(len(body)) + body
    bomb = batch(0, b"x")
    header = parse_header(bomb)._replace(batch_length=HEADER_SIZE - 12 + len(record))
    bomb = bytearray(HEADER.pack(*header)) + record
    seal(bomb)
    found, _ = search(Log(bomb, batch(1, b"after")))
    assert [each.value.text for each in found] == [None, "after"]
    assert "headers" in (found[0].error or "")


def zigzag(number: int) -> bytes:
    """Write a number as a varint."""
    left, written = 2 * number, bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(written) + bytes((left,))


def test_a_round_of_many_partitions_holds_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Huge records of many partitions are taken one after the other. All of them are found in the end."""
    monkeypatch.setattr(scan_module, "ROUND_HELD_BYTES_MAX", 100_000)
    monkeypatch.setattr(Log, "run", lambda self, outcome: outcome, raising=False)
    logs = {index: Log(batch(0, b"v" * 100_000)) for index in range(20)}
    rounds = [0]

    def fetch(
        log: Log, offsets: Mapping[TopicPartition, int], *, only_stable: bool, wait_ms: int, deadline: float
    ) -> dict[TopicPartition, FetchedBatches]:
        rounds[0] += 1
        return {key: logs[key.partition].fetch(offset, only_stable) for key, offset in offsets.items()}

    monkeypatch.setattr(scan_module, "fetch_batches", fetch)
    scan = Scan(logs[0], "t", {index: Span(0, 1) for index in logs}, None)
    taken = []
    for item in scan.run(1000):
        if isinstance(item, Found):
            taken.append((item.partition, rounds[0]))
    assert sorted(index for index, _ in taken) == list(range(20))
    assert len({number for _, number in taken}) == 20
    assert scan.reason == "end"


def test_a_followed_partition_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose leader is gone for a while is followed on where it was left; a deleted one is not."""
    monkeypatch.setattr(Log, "run", lambda self, outcome: outcome, raising=False)
    clock = [0.0]
    monkeypatch.setattr(scan_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(scan_module.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    log, asked = Log(batch(0, b"a")), []
    codes = {0: ErrorCode.LEADER_NOT_AVAILABLE, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def fetch(
        log: Log, offsets: Mapping[TopicPartition, int], *, only_stable: bool, wait_ms: int, deadline: float
    ) -> dict[TopicPartition, FetchedBatches | KafkaError]:
        asked.append(({key.partition for key in offsets}, deadline - clock[0]))
        clock[0] += 0.1
        return {
            key: KafkaError(codes[key.partition])
            if key.partition in codes
            else log.fetch(offset, only_stable)
            for key, offset in offsets.items()
        }

    monkeypatch.setattr(scan_module, "fetch_batches", fetch)
    scan = Scan(log, "t", {0: Span(0, None), 1: Span(0, None)}, None)
    found = []
    for item in scan.run(1000):
        if isinstance(item, Found):
            found.append(item.offset)
        if clock[0] > 30.0:
            break
        if clock[0] > 10.0 and codes:
            assert scan.spans[0].failure is not None
            codes.clear()
    assert found == [0]
    assert scan.spans[0].failure is None
    assert scan.spans[1].failure is not None
    again = [patience for which, patience in asked if which == {0}]
    assert len([each for each in again if each == scan_module.ASK_AGAIN_SECONDS_MAX]) in range(2, 6)
