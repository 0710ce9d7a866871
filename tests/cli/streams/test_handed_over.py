"""The bookkeeping of `consume --group`: only records that were written to the output are committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cli.streams.handed_over import HandedOver
from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.wire.topic_partition import TopicPartition

KEYS = [TopicPartition("t", index) for index in range(3)]


class Consumer:
    """An in-memory consumer. Its logs have gaps and markers, and `poll` moves the position past both."""

    def __init__(
        self, logs: dict[TopicPartition, list[tuple[int, bool]]], begins: dict[TopicPartition, int]
    ) -> None:
        self.logs = logs
        """For each partition, (offset, visible) in order.

        An entry with False is a marker, which applications do not see.
        """
        self.position = dict(begins)

    def poll(self, key: TopicPartition, count: int) -> list[ConsumerRecord]:
        """Return at most `count` records of a partition."""
        found = []
        for offset, seen in self.logs[key]:
            if offset < self.position[key] or len(found) == count:
                continue
            self.position[key] = offset + 1
            if seen:
                found.append(ConsumerRecord(*key, offset, 0, None, b"", ()))
        return found


logs = st.fixed_dictionaries(
    {
        key: st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12).map(
            lambda steps: [
                (sum(step for step, _ in steps[: place + 1]), seen) for place, (_, seen) in enumerate(steps)
            ]
        )
        for key in KEYS
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 5)), max_size=4)),
        st.tuples(st.just("settle"), st.integers(0, 8)),
        st.tuples(st.just("forget"), st.sampled_from(KEYS)),
    ),
    max_size=20,
)


@given(logs, steps)
def test_a_commit_is_what_was_handed_over_no_more_and_no_less(
    logs: dict[TopicPartition, list[tuple[int, bool]]], steps: list[tuple[str, object]]
) -> None:
    """A commit covers exactly the records that were handed over. If all polled records were, the commit is the
    consumer's position."""
    consumer = Consumer(logs, dict.fromkeys(KEYS, 0))
    books = HandedOver()
    polled: list[ConsumerRecord] = []
    handed: set[tuple[TopicPartition, int]] = set()
    for what, how in steps:
        match what, how:
            case "poll", list():
                found = [record for key, count in how for record in consumer.poll(key, count)]
                books.polled(found)
                polled += found
            case "settle", int():
                count = min(how, len(polled))
                books.settle(count)
                handed.update(
                    (TopicPartition(each.topic, each.partition), each.offset) for each in polled[:count]
                )
                del polled[:count]
            case "forget", TopicPartition():
                # The partition leaves this member and comes back: the member resumes at the committed offset.
                (commit,) = books.offsets({how: consumer.position[how]}).values()
                books.forget([how])
                polled = [each for each in polled if (each.topic, each.partition) != how]
                consumer.position[how] = commit
        commits = books.offsets(dict(consumer.position))
        assert set(commits) == set(KEYS)
        for key, commit in commits.items():
            records = [offset for offset, seen in logs[key] if seen]
            assert {offset for offset in records if offset < commit} == {
                offset for place, offset in handed if place == key
            }
            if all((each.topic, each.partition) != key for each in polled):
                assert commit == consumer.position[key], (
                    "the commit must pass the markers and gaps behind the last record"
                )


def test_a_position_that_is_not_known() -> None:
    """If the position is unknown, the commit follows the last record handed over. A partition without such a record is
    left out."""
    books = HandedOver()
    books.polled([ConsumerRecord("t", 0, 7, 0, None, b"", ()), ConsumerRecord("t", 1, 3, 0, None, b"", ())])
    books.settle(1)
    assert books.offsets(dict.fromkeys(KEYS, None)) == {KEYS[0]: 8, KEYS[1]: 3}


def test_more_than_was_polled_is_a_bug() -> None:
    """Settling more records than were polled raises `AssertionError`."""
    books = HandedOver()
    with pytest.raises(AssertionError):
        books.settle(1)
