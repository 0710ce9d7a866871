"""The wiretap on connections, and the ends of stored logs: checks see the sent messages and the content of disks."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from odradek.wire.api import request_header_version, response_header_version
from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import encode
from odradek.wire.messages.headers import RequestHeader, ResponseHeader
from odradek.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.structure import Message
from sim.checks.stored_logs import StoredLogs
from sim.checks.wiretap import STREAMS, Exchange, Wiretap
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk

API = ApiKey.LIST_OFFSETS
VERSION = 10


@attrs.define(eq=False)
class End:
    """A stub of one end of a connection."""

    name: str
    peer: Any = None
    is_closed: bool = False


def _connection() -> tuple[Any, Any]:
    client, server = End("c1>"), End("c1<")
    client.peer, server.peer = server, client
    return client, server


class Ears:
    """A listener that records all exchanges, and optionally complains about each answer."""

    def __init__(self, *, complains: bool = False) -> None:
        self.heard: list[int] = []
        self._complains = complains

    def asked(self, exchange: Exchange) -> bool:
        exchange.memo = exchange.request.timeout_ms
        return True

    def answered(self, exchange: Exchange, answer: Any) -> None:
        assert isinstance(answer, ListOffsetsResponse)
        self.heard += [exchange.memo, answer.throttle_time_ms]
        if self._complains:
            raise SafetyViolation("a complaint")


def _frame(header: Message, header_version: int, body: Message) -> bytes:
    data = encode(header, header_version) + encode(body, VERSION)
    return len(data).to_bytes(4, "big") + data


def _request(number: int) -> bytes:
    header = RequestHeader(API, VERSION, number, "client")
    return _frame(header, request_header_version(API, VERSION), ListOffsetsRequest(-1, timeout_ms=number))


def _answer(number: int) -> bytes:
    header = ResponseHeader(number)
    return _frame(header, response_header_version(API, VERSION), ListOffsetsResponse(1000 + number))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_tap_hears_each_answer_with_its_request(size: int) -> None:
    """A listener gets each answer with its request, in the order of the answers, however the stream is split."""
    refuted: list[Exception] = []
    tap, ears = Wiretap(refuted.append), Ears()
    tap.listen(API, ears)
    client, server = _connection()
    asked, answered = _request(1) + _request(2), _answer(1) + _answer(2)
    for conn, data in ((client, asked), (server, answered)):
        for start in range(0, len(data), size):
            tap.sent(conn, data[start : start + size])
    assert ears.heard == [1, 1001, 2, 1002]
    assert tap.statistics() == {"requests_heard": 2, "answers_heard": 2, "streams": 2}
    assert not refuted


def test_a_tap_passes_over_what_is_no_message() -> None:
    """Other APIs, unexpected answers, malformed messages and endless frames are ignored."""
    tap, ears = Wiretap(lambda error: None), Ears()
    tap.listen(API, ears)
    client, server = _connection()
    tap.sent(server, _answer(1))
    tap.sent(client, (10).to_bytes(4, "big") + bytes([0, API, 0, VERSION]) + bytes(6))
    tap.sent(client, (2).to_bytes(4, "big") + bytes([0, API]))
    tap.sent(client, (8).to_bytes(4, "big") + bytes(8))
    tap.sent(client, _request(3))
    tap.sent(client, b"GET / HTTP/1.1\r\n\r\n")
    tap.sent(client, _request(4))
    tap.sent(server, _answer(3) + _answer(4))
    assert ears.heard == [3, 1003]


def test_a_tap_forgets_connections_that_are_closed() -> None:
    """The tap forgets closed connections, so its memory stays bounded."""
    tap, ears = Wiretap(lambda error: None), Ears()
    tap.listen(API, ears)
    client, server = _connection()
    tap.sent(client, _request(1))
    for _ in range(3 * STREAMS):
        other, _ = _connection()
        tap.sent(other, _request(2))
        other.is_closed = True
    assert tap.statistics()["streams"] <= STREAMS
    tap.sent(server, _answer(1))
    assert ears.heard == [1, 1001]


def test_a_listener_that_complains_ends_the_run() -> None:
    """A listener's complaint is passed to the simulated world, and not raised in the sending node."""
    refuted: list[Exception] = []
    tap = Wiretap(refuted.append)
    tap.listen(API, Ears(complains=True))
    client, server = _connection()
    tap.sent(client, _request(1))
    tap.sent(server, _answer(1))
    assert [str(error) for error in refuted] == ["a complaint"]


def _batch(base_offset: int, count: int) -> bytearray:
    builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=1)
    for number in range(count):
        builder.append(0, None, b"%d" % number)
    return builder.build()


def test_a_log_ends_on_the_platter_where_its_last_sync_was() -> None:
    """Appended bytes extend the log in the page cache, and synced bytes extend it on the platter if the file's name is
    durable, too."""
    disk = SimDisk()
    root = disk.open_dir("/data", create=True)
    log = root.subdir("t-0", create=True)
    cached, durable = StoredLogs(is_durable=False), StoredLogs(is_durable=True)

    def ends() -> tuple[int, int]:
        return cached.end_offset(disk, "/data/t-0"), durable.end_offset(disk, "/data/t-0")

    assert ends() == (-1, -1)
    first = log.open(f"{0:020d}.log", create=True)
    first.append(_batch(0, 3))
    first.sync()
    assert ends() == (3, -1)
    log.sync()
    assert ends() == (3, -1)
    root.sync()
    assert ends() == (3, 3)
    first.append(_batch(3, 2))
    assert ends() == (5, 3)
    second = log.open(f"{5:020d}.log", create=True)
    second.append(_batch(5, 1))
    second.sync()
    log.sync()
    assert ends() == (6, 3), "a segment behind a gap must not count"
    first.sync()
    assert ends() == (6, 6)


def test_a_log_that_was_cut_and_written_again_is_walked_anew() -> None:
    """If a log is truncated and rewritten to the same length, its end is computed again."""
    disk = SimDisk()
    log = disk.open_dir("/data", create=True)
    cached = StoredLogs(is_durable=False)
    file = log.open(f"{0:020d}.log", create=True)
    file.append(_batch(0, 3))
    size = file.size
    file.append(_batch(3, 2))
    assert cached.end_offset(disk, "/data") == 5
    file.truncate(size)
    assert cached.end_offset(disk, "/data") == 3
    other = _batch(3, 2)
    other[57:61] = bytes(4)
    other[23:27] = (6).to_bytes(4, "big")
    file.append(other)
    assert cached.end_offset(disk, "/data") == 10
    file.append(b"torn")
    assert cached.end_offset(disk, "/data") == 10
