"""Incremental fetch sessions against a model of the broker's side (KIP-227)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.client.consumer.incremental_fetch import FetchSession, Wanted
from odradek.wire.messages.fetch import FetchRequest
from odradek.wire.topic_partition import TopicPartition

KEYS = [TopicPartition(topic, index) for topic in "ab" for index in range(2)]


class BrokerSide:
    """A broker's fetch session: 'the partitions which the fetcher is interested in' by the requests it got."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[tuple[bytes, int], int] = {}
        self._ids = 0

    def take(self, request: FetchRequest, *, keep: bool) -> int:
        """The session id to answer with. Asserts that the request fits the session."""
        if request.session_epoch == 0:
            self.partitions = {}
            self.session_id = 0
            if keep:
                self._ids += 1
                self.session_id = self._ids
        else:
            assert (request.session_id, request.session_epoch) == (self.session_id, self.epoch)
        # A topic id that is both forgotten and new is new.
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                self.partitions.pop((gone.topic_id, index))
        for topic in request.topics:
            for partition in topic.partitions:
                self.partitions[topic.topic_id, partition.partition] = partition.fetch_offset
        self.epoch = request.session_epoch + 1
        return self.session_id


def wanted_of(offsets: dict[TopicPartition, int], age: int = 0) -> dict[TopicPartition, Wanted]:
    """`age` counts how often the topics were made anew."""
    return {
        key: Wanted(key.topic.encode() + bytes([age]) * 15, offset, 0, -1, 100)
        for key, offset in offsets.items()
    }


WANTED = st.builds(wanted_of, st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3)), st.integers(0, 1))


@given(st.lists(st.tuples(WANTED, st.sampled_from(["answer", "answer", "answer", "no session", "broken"]))))
def test_the_broker_always_knows_exactly_what_is_wanted(
    steps: list[tuple[dict[TopicPartition, Wanted], str]],
) -> None:
    """'Incremental fetch requests ... contain only the partitions that have changed': in sum they say everything."""
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
    """The second request of a session is short."""
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
    """Epoch 0 with the old id closes it at the broker; FETCH_SESSION_ID_NOT_FOUND leaves nothing to close."""
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
