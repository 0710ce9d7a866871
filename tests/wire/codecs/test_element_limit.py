"""The limit on the number of array elements in a request. It bounds memory and time, which the number of bytes alone
does not."""

from __future__ import annotations

import pytest

from odradek.wire.codec import ELEMENTS_MAX, bounded_decoder, decode_bounded, decoder, encode
from odradek.wire.errors import MalformedMessage
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from odradek.wire.structure import Message

ONE = DescribableLogDirTopic("", [])


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (DescribeLogDirsRequest([ONE] * (ELEMENTS_MAX + 1)), 4),
        (DescribeLogDirsRequest([DescribableLogDirTopic("", [0] * ELEMENTS_MAX)]), 4),
        (DescribeLogDirsRequest([DescribableLogDirTopic("", [0] * (ELEMENTS_MAX // 2))] * 2), 1),
        (DeleteTopicsRequest([], [""] * (ELEMENTS_MAX + 1)), 5),
        (OffsetFetchRequest("", [OffsetFetchRequestTopic("t", [0] * ELEMENTS_MAX)]), 7),
    ],
    ids=["structures", "numbers", "nested", "strings", "nullable"],
)
def test_one_element_too_many_is_refused(message: Message, version: int) -> None:
    """One element more than allowed in all arrays together is refused. Without the limit the message is decoded."""
    data = encode(message, version)
    assert decoder(type(message), version)(data, 0)[1] == len(data)
    for decode in (
        bounded_decoder(type(message), version),
        lambda data, _: decode_bounded(type(message), version, data),
    ):
        with pytest.raises(MalformedMessage, match=f"more than {ELEMENTS_MAX} elements"):
            decode(data, 0)


def test_as_many_as_allowed_are_the_same_message() -> None:
    """With exactly as many elements as allowed, the decoded message is the same as without a limit."""
    partitions = [FetchPartition(number, fetch_offset=number) for number in range(ELEMENTS_MAX // 4)]
    topics = [FetchTopic(topic_id=bytes([number]) * 16, partitions=partitions) for number in range(3)]
    forgotten = [ForgottenTopic(topic_id=bytes(16), partitions=list(range(ELEMENTS_MAX // 4 - 4)))]
    message = FetchRequest(topics=topics, forgotten_topics_data=forgotten, rack_id="r")
    data = encode(message, 17)
    plain, bounded = decoder(FetchRequest, 17)(data, 0), bounded_decoder(FetchRequest, 17)(data, 0)
    assert plain[1] == bounded[1] == len(data)
    assert encode(bounded[0], 17) == data


def test_a_short_message_needs_no_bound() -> None:
    """Each element takes at least one byte. So elements need not be counted if the message's bytes are within the
    limit."""
    message = DeleteTopicsRequest([], [""] * (ELEMENTS_MAX - 20))
    data = encode(message, 5)
    assert len(data) <= ELEMENTS_MAX
    assert decode_bounded(DeleteTopicsRequest, 5, data).topic_names == message.topic_names
