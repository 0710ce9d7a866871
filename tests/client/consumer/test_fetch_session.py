"""Incremental fetch sessions (KIP-227) against a model of the broker's side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.consumer.incremental_fetch import FetchSession, Wanted
from odradek.client.core.requests import PARTITIONS_MAX, in_parts
from odradek.wire.codec import bounded_decoder, encode
from odradek.wire.messages.fetch import FetchRequest
from odradek.wire.topic_partition import TopicPartition

KEYS = [TopicPartition(topic, index) for topic in "ab" for index in range(2)]


class BrokerSide:
    """The broker's side of a fetch session: the partitions that it knows from the requests so far."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[tuple[bytes, int], int] = {}
        self._ids = 0

    def take(self, request: FetchRequest, *, keep: bool) -> int:
        """Apply a request, and return the session id to answer with. Fails if the request does not fit the session."""
        if request.session_epoch == 0:
            self.partitions = {}
            self.session_id = 0
            if keep:
                self._ids += 1
                self.session_id = self._ids
        else:
            assert (request.session_id, request.session_epoch) == (self.session_id, self.epoch)
        # Forgotten partitions come first: a topic id that is both forgotten and listed counts as listed.
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                self.partitions.pop((gone.topic_id, index))
        for topic in request.topics:
            for partition in topic.partitions:
                self.partitions[topic.topic_id, partition.partition] = partition.fetch_offset
        self.epoch = request.session_epoch + 1
        return self.session_id


def wanted_of(offsets: dict[TopicPartition, int], age: int = 0) -> dict[TopicPartition, Wanted]:
    """Make the wanted state of these partitions.

    `age` is part of the topic id, so another `age` is a recreated topic.
    """
    return {
        key: Wanted(key.topic.encode() + bytes([age]) * 15, offset, 0, -1, 100)
        for key, offset in offsets.items()
    }


WANTED = st.builds(wanted_of, st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3)), st.integers(0, 1))


@given(st.lists(st.tuples(WANTED, st.sampled_from(["answer", "answer", "answer", "no session", "broken"]))))
def test_the_broker_always_knows_exactly_what_is_wanted(
    steps: list[tuple[dict[TopicPartition, Wanted], str]],
) -> None:
    """After every request the broker knows exactly the wanted partitions. Incremental requests list only changes."""
    session, broker = FetchSession(), BrokerSide()
    for wanted, outcome in steps:
        request = session.request(wanted, with_ids=True)
        session_id = broker.take(request, keep=outcome != "no session")
        assert broker.partitions == {(w.topic_id, key.partition): w.offset for key, w in wanted.items()}
        if outcome == "broken":
            session.start_over()
        else:
            session.answered(session_id)


def test_an_incremental_request_names_only_what_is_new_moved_or_gone() -> None:
    """An incremental request lists only the partitions that are new, have moved or are no longer wanted."""
    session = FetchSession()
    a, b = KEYS[0], KEYS[2]
    session.request(wanted_of({a: 0, b: 0}), with_ids=True)
    session.answered(9)
    request = session.request(wanted_of({a: 5, b: 0}), with_ids=True)
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert [(t.topic, [p.fetch_offset for p in t.partitions]) for t in request.topics] == [("a", [5])]
    assert request.forgotten_topics_data == []
    session.answered(9)
    request = session.request(wanted_of({b: 0}), with_ids=True)
    assert request.topics == []
    assert [(t.topic, t.partitions) for t in request.forgotten_topics_data] == [("a", [0])]


def test_doubt_ends_a_session_and_a_topic_without_id_begins_another() -> None:
    """If a topic has no id, the next request ends the session and starts another one.

    After a connection is lost, there is no session to close.
    """
    session = FetchSession()
    wanted = wanted_of({KEYS[0]: 0})
    session.request(wanted, with_ids=True)
    session.answered(9)
    assert session.topic_name(wanted[KEYS[0]].topic_id) == "a"
    request = session.request(wanted, with_ids=False)
    assert (request.session_id, request.session_epoch, len(request.topics)) == (9, 0, 1)
    session.answered(10)
    closing = session.closing_request()
    assert closing is not None
    assert (closing.session_id, closing.session_epoch) == (10, -1)
    session.lost()
    assert session.closing_request() is None
    assert session.request(wanted, with_ids=False).session_id == 0


def many(topics: int, each: int, offset: int = 0) -> dict[TopicPartition, Wanted]:
    """Make the wanted state of many partitions of one broker."""
    return {
        TopicPartition(f"t{topic}", index): Wanted(topic.to_bytes(16, "big"), offset, 0, -1, 100)
        for topic in range(1, topics + 1)
        for index in range(each)
    }


def taken(request: FetchRequest) -> FetchRequest:
    """Encode a request, and decode it with the limits of our brokers. Raises `MalformedMessage`."""
    return bounded_decoder(FetchRequest, 17)(memoryview(encode(request, 17)), 0)[0]


def named_in(request: FetchRequest) -> int:
    """Count the partitions that a request lists."""
    return sum(len(topic.partitions) for topic in request.topics)


@pytest.mark.parametrize(("topics", "each"), [(20_000, 1), (1, 45_000)])
def test_a_session_of_many_partitions_is_made_in_parts(topics: int, each: int) -> None:
    """A session of very many partitions is built by several requests, each within a broker's limit.

    After the last the broker knows all.
    """
    broker, session = BrokerSide(), FetchSession()
    parts = -(-topics * each // PARTITIONS_MAX)
    for offset in (0, 1):
        wanted = many(topics, each, offset)
        for part in range(parts):
            request = session.request(wanted, with_ids=True)
            session.answered(broker.take(taken(request), keep=True))
            assert named_in(request) <= PARTITIONS_MAX
            is_last = part == parts - 1
            assert session.is_part is not is_last
        assert session.partitions == wanted
        assert broker.partitions == {(want.topic_id, key.partition): offset for key, want in wanted.items()}
    quiet = session.request(wanted, with_ids=True)
    assert (named_in(quiet), session.is_part) == (0, False)


@pytest.mark.parametrize(("topics", "each"), [(20_000, 1), (1, 45_000)])
def test_without_a_session_the_parts_take_turns(topics: int, each: int) -> None:
    """A broker keeps no session. Requests list different partitions in turn, until all have been fetched."""
    broker, session = BrokerSide(), FetchSession()
    wanted = many(topics, each)
    for _ in range(2):
        seen: dict[TopicPartition, None] = {}
        while len(seen) < len(wanted):
            request = session.request(wanted, with_ids=True)
            session.answered(broker.take(taken(request), keep=False))
            assert not seen.keys() & session.partitions.keys()
            seen |= dict.fromkeys(session.partitions)
            assert session.is_part == (len(seen) < len(wanted))


def test_a_farewell_to_too_many_partitions_is_a_new_session() -> None:
    """Very many partitions are no longer wanted.

    A list of all of them would exceed the request's limit, so a full request starts a new session.
    """
    broker, session = BrokerSide(), FetchSession()
    wanted = many(20_000, 1)
    for _ in range(3):
        session.answered(broker.take(session.request(wanted, with_ids=True), keep=True))
    left = dict(list(wanted.items())[:3])
    request = taken(session.request(left, with_ids=True))
    session.answered(broker.take(request, keep=True))
    assert (request.session_epoch, request.forgotten_topics_data) == (0, [])
    assert len(broker.partitions) == len(session.partitions) == 3


def test_other_requests_about_many_partitions_are_split() -> None:
    """ListOffsets and OffsetForLeaderEpoch are split, so that a request lists no more partitions than a Fetch may."""
    keys = [TopicPartition("t", index) for index in range(2 * PARTITIONS_MAX + 1)]
    parts = list(in_parts({1: keys, 2: keys[:1]}))
    assert [(node, len(part)) for node, part in parts] == [
        (1, PARTITIONS_MAX),
        (1, PARTITIONS_MAX),
        (1, 1),
        (2, 1),
    ]
    assert [key for node, part in parts if node == 1 for key in part] == keys
