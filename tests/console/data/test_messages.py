"""The messages of a topic, read from a node: starts, filters, transactions, tails, damage."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from odradek import Producer
from odradek.client.admin import NewTopic
from odradek.console.reading.shown_records import ShownRecord
from odradek.console.sessions.session import Session
from odradek.console.shapes.view_errors import ViewError
from odradek.console.streams.thread_stream import StreamOver
from odradek.console.views.messages import (
    DownloadQuery,
    MessageQuery,
    MessagesQuery,
    SearchEnd,
    SearchProgress,
    download,
    message,
    messages,
)
from tests.node_process import RunningNode


class Events:
    """A stream that keeps its events. It is over after `most` records."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.records: list[ShownRecord] = []
        self.progress: list[SearchProgress] = []
        self.ends: list[SearchEnd] = []
        self.is_over = False
        self._most = most
        self.has_news = threading.Event()

    def send(self, name: str, value: object) -> None:
        """Keep an event."""
        if self.is_over:
            raise StreamOver
        if isinstance(value, ShownRecord):
            assert name == "record"
            self.records.append(value)
            self.is_over = len(self.records) >= self._most
            self.has_news.set()
        elif isinstance(value, SearchProgress):
            assert name == "progress"
            self.progress.append(value)
        else:
            assert name == "end"
            assert isinstance(value, SearchEnd)
            self.ends.append(value)


class Bytes:
    """A download that keeps its bytes."""

    def __init__(self) -> None:
        self.name = ""
        self.data = b""
        self.is_over = False

    def begin(self, file_name: str, content_type: str = "application/octet-stream") -> None:
        """Keep the name."""
        self.name = file_name

    def write(self, data: bytes) -> None:
        """Keep bytes."""
        self.data += data


class Read(NamedTuple):
    """What a search has sent."""

    records: list[ShownRecord]
    end: SearchEnd
    progress: SearchProgress

    @property
    def values(self) -> list[str | None]:
        return [each.value.text for each in self.records]


@pytest.fixture
def session(node: RunningNode) -> Iterator[Session]:
    """A session of a user at a node without logins."""
    opened = Session({"bootstrap.servers": node.bootstrap})
    yield opened
    opened.close()


@pytest.fixture
def topic(session: Session, fresh_topic: Callable[[str], str]) -> str:
    """A topic of three partitions."""
    name = fresh_topic("messages")
    session.client.create_topics([NewTopic(name, 3, 1)])
    return name


def read(session: Session, topic: str, **words: object) -> Read:
    """Search the messages of a topic to the end of the search."""
    events = Events()
    messages(session, MessagesQuery(topic=topic, **words), events)
    (end,) = events.ends
    return Read(events.records, end, events.progress[-1])


def write(session: Session, topic: str, count: int, **more: object) -> None:
    """Write records 0, 1, ... in turn to three partitions, with growing timestamps."""
    with Producer(bootstrap_servers=session.bootstrap, **more) as producer:
        for number in range(count):
            producer.send(
                topic,
                f"value {number}".encode(),
                key=f"key {number % 5}".encode(),
                partition=number % 3,
                timestamp_ms=1_000_000 + number,
                headers=(("number", str(number).encode()),),
            )


def test_a_search_from_the_start_merges_partitions_by_time(session: Session, topic: str) -> None:
    """From the start, all records come in the order of their timestamps, with key, headers and the end."""
    write(session, topic, 30)
    found = read(session, topic, from_="earliest", limit=100)
    assert found.values == [f"value {number}" for number in range(30)]
    assert found.records[4].key.text == "key 4"
    assert found.records[4].headers[0].value.text == "4"
    assert found.records[4].timestamp_ms == 1_000_004
    assert found.end == SearchEnd(reason="end", next_=None, failed=[])
    assert (found.progress.scanned, found.progress.total, found.progress.found) == (30, 30, 30)


def test_pages_follow_each_other_without_gaps(session: Session, topic: str) -> None:
    """The word `next` of each page begins at the next record, whatever the page left in its round."""
    write(session, topic, 100)
    values, start = [], "earliest"
    while start is not None:
        page = read(session, topic, from_=start, limit=7)
        values += page.values
        start = page.end.next_
    assert values == [f"value {number}" for number in range(100)]


def test_the_newest_records_come_first_and_older_pages_follow(session: Session, topic: str) -> None:
    """newest:N gives the N newest of all partitions, and `before` those before them."""
    write(session, topic, 100)
    first = read(session, topic, from_="newest:10")
    assert first.values == [f"value {number}" for number in range(99, 89, -1)]
    second = read(session, topic, from_="newest:10", before=first.end.next_ or "")
    assert second.values == [f"value {number}" for number in range(89, 79, -1)]
    last = read(session, topic, from_="newest:1000")
    assert len(last.values) == 100
    assert last.end.next_ is None


def test_one_uneven_partition_has_all_the_newest(session: Session, topic: str) -> None:
    """If the newest records are all in one partition, its windows grow until they are found."""
    with Producer(bootstrap_servers=session.bootstrap) as producer:
        for number in range(400):
            producer.send(
                topic, b"%d" % number, partition=0 if number > 50 else number % 3, timestamp_ms=number
            )
    found = read(session, topic, from_="newest:300", limit=300)
    assert found.values == [str(number) for number in range(399, 99, -1)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("time:1000024", range(24, 30)), ("offset:8", range(24, 30)), ("latest", range(0)), ("at:1:9", [28])],
)
def test_other_starts(session: Session, topic: str, start: str, expected: list[int]) -> None:
    """A search begins at a time, at an offset, at the end, or at given places."""
    write(session, topic, 30)
    assert read(session, topic, from_=start, limit=100).values == [f"value {number}" for number in expected]


def test_a_search_by_key_header_and_pattern(session: Session, topic: str) -> None:
    """Only records that fit all conditions are found, and the search says how many it looked at."""
    write(session, topic, 300)
    found = read(session, topic, from_="earliest", key="key 3", filter_="value .*8$")
    assert found.values == [
        f"value {number}" for number in range(300) if number % 10 == 8 and number % 5 == 3
    ]
    assert found.progress.scanned == 300
    assert read(session, topic, from_="earliest", header="number=17").values == ["value 17"]
    newest = read(session, topic, from_="newest:3", filter_="7$")
    assert newest.values == ["value 297", "value 287", "value 277"]


@pytest.mark.parametrize("pattern", ["(", "a{1000}{1000}", "\\pL" * 100])
def test_a_bad_pattern_is_refused_with_a_sentence(session: Session, topic: str, pattern: str) -> None:
    """A pattern that RE2 cannot read, or only slowly, is an error of the request."""
    with pytest.raises(ViewError) as caught:
        read(session, topic, filter_=pattern)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "start", ["newest:0", "newest:1001", "offset:-1", "time:x", "at:1", "at:1:2:3", "earliest:"]
)
def test_a_bad_start_is_refused_with_a_sentence(session: Session, topic: str, start: str) -> None:
    """A start that cannot be read is an error of the request."""
    with pytest.raises(ViewError) as caught:
        read(session, topic, from_=start)
    assert caught.value.status == 400


def test_transactions_are_shown_with_their_state(session: Session, topic: str) -> None:
    """Committed, aborted and open transactions are told apart, before and behind the last stable offset."""
    settings = {"bootstrap_servers": session.bootstrap}
    with (
        Producer(transactional_id=f"{topic}-a", **settings) as first,
        Producer(transactional_id=f"{topic}-b", **settings) as second,
        Producer(**settings) as plain,
    ):
        first.init_transactions()
        second.init_transactions()

        def send(producer: Producer, text: str) -> None:
            producer.send(topic, text.encode(), partition=0).result(10)

        first.begin_transaction()
        send(first, "committed")
        first.commit_transaction()
        first.begin_transaction()
        send(first, "aborted")
        send(plain, "plain")
        first.abort_transaction()
        second.begin_transaction()
        send(second, "open")
        first.begin_transaction()
        send(first, "committed behind")
        first.commit_transaction()
        first.begin_transaction()
        send(first, "aborted behind")
        first.abort_transaction()
        send(plain, "last")
        found = read(session, topic, partition=0, from_="earliest").records
        states = {
            each.value.text: None if each.transaction is None else each.transaction.state
            for each in found
            if not each.is_control
        }
        assert states == {
            "committed": "committed",
            "aborted": "aborted",
            "plain": None,
            "open": "open",
            "committed behind": "committed",
            "aborted behind": "aborted",
            "last": None,
        }
        markers = [json.loads(each.value.text or "")["marker"] for each in found if each.is_control]
        assert markers == ["commit", "abort", "commit", "abort"]
        newest = read(session, topic, partition=0, from_="newest:4", markers=False).records
        assert newest[0].value.text == "last"
        lines = Bytes()
        download(session, DownloadQuery(topic=topic), lines)
        texts = [json.loads(line)["value"] for line in lines.data.splitlines()]
        assert texts == ["committed", "plain", "committed behind", "last"]
        second.abort_transaction()


@pytest.mark.parametrize(("at_once", "most"), [(3, 2), (30, 70)])
def test_a_tail_shows_records_as_they_are_written(
    session: Session, topic: str, at_once: int, most: int
) -> None:
    """A tail waits, shows new records without a limit, and ends when its reader goes."""
    write(session, topic, 3)
    events = Events(most=most)

    def follow() -> None:
        # A search sees that its reader has gone before or while it sends.
        with suppress(StreamOver):
            messages(session, MessagesQuery(topic=topic, from_="latest", tail=True), events)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    while thread.is_alive() and not events.has_news.wait(0.2):
        write(session, topic, at_once)
    while thread.is_alive() and not events.is_over:
        write(session, topic, at_once)
    thread.join(20)
    assert not thread.is_alive()
    assert len(events.records) == most


def test_a_tail_ends_in_time_and_names_its_place(
    session: Session, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail ends after its time; its `next` is where reading goes on."""
    write(session, topic, 6)
    monkeypatch.setattr("odradek.console.views.messages.TAIL_SECONDS_MAX", 0.0)
    found = read(session, topic, from_="latest", tail=True)
    assert found.end == SearchEnd(reason="budget", next_="at:0:2,1:2,2:2", failed=[])
    write(session, topic, 3)
    assert read(session, topic, from_=found.end.next_).values == ["value 0", "value 1", "value 2"]


def test_a_tail_ends_after_a_while(session: Session, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail without an end would keep its thread for ever. It says where to go on."""
    monkeypatch.setattr("odradek.console.views.messages.TAIL_SECONDS_MAX", 1.0)
    write(session, topic, 3)
    events = Events()
    # Without the limit, the view does not end: the stream is over after a while in any case.
    late = threading.Timer(20, lambda: setattr(events, "is_over", True))
    late.start()
    messages(session, MessagesQuery(topic=topic, from_="latest", tail=True), events)
    late.cancel()
    (end,) = events.ends
    assert end.reason == "budget"
    assert end.next_ is not None
    assert end.next_.startswith("at:")


def test_one_message_is_shown_and_downloaded_as_a_whole(session: Session, topic: str) -> None:
    """A list cuts a large value, and the view of one message has all of it; bytes and JSON are downloaded."""
    large = b"x" * 900_000
    with Producer(bootstrap_servers=session.bootstrap, max_request_size=2 << 20) as producer:
        producer.send(topic, large, key=b"\xff\x00", partition=1).result(10)
    (row,) = read(session, topic).records
    assert row.value.is_cut
    assert row.value.size_bytes == 900_000
    assert row.key.format == "hex"
    whole = message(session, MessageQuery(topic=topic, partition=1, offset=0))
    assert whole.value.text == large.decode()
    assert not whole.value.is_cut
    for part, expected in (("value", large), ("key", b"\xff\x00")):
        file = Bytes()
        download(session, DownloadQuery(topic=topic, partition=1, offset=0, part=part), file)
        assert file.data == expected
        assert file.name == f"{topic}-1-0.{part}.bin"
    with pytest.raises(ViewError) as caught:
        message(session, MessageQuery(topic=topic, partition=1, offset=1))
    assert (caught.value.status, caught.value.code) == (404, "NO_RECORD")


def test_unknown_topics_and_partitions_are_errors(session: Session, topic: str) -> None:
    """A partition that is not there is a 404 with the number of partitions."""
    with pytest.raises(ViewError) as caught:
        read(session, topic, partition=3)
    assert caught.value.status == 404


def test_records_of_internal_topics_have_their_own_decoder(session: Session, topic: str) -> None:
    """Committed offsets are shown with their group, topic and offset."""
    write(session, topic, 3)
    session.client.alter_group_offsets(f"{topic}-group", {(topic, 0): 1})
    deadline = time.monotonic() + 20
    texts: list[str] = []
    while not any(f"{topic}-group" in text for text in texts) and time.monotonic() < deadline:
        found = read(session, "__consumer_offsets", from_="newest:20")
        texts = [each.key.text or "" for each in found.records if each.key.format == "internal"]
    assert any(f"{topic}-group" in text and '"record":"OffsetCommit"' in text for text in texts)
