"""Encoders that count error codes give the same counts as a walk through the whole response."""

from __future__ import annotations

from typing import Any

from odradek.wire import codec
from odradek.wire.api import response_class
from odradek.wire.api_keys import APIS
from odradek.wire.codecs.codec_encode import ERROR_FIELDS
from odradek.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from odradek.wire.messages.metadata import MetadataResponse
from odradek.wire.structure import Structure
from tests.wire.message_values import generated


def counted(response: Any, version: int) -> dict[int, int]:
    """Encode with counting, and check that the bytes equal those of the plain encoder; return the counts."""
    counts: dict[int, int] = {}
    w = bytearray()
    codec.counting_encoder(type(response), version)(w, response, None, counts)
    assert w == codec.encode(response, version)
    return counts


def found_by_walking(value: Any) -> dict[int, int]:
    """Count the error codes in a response by walking through all of its fields."""
    counts: dict[int, int] = {}
    if isinstance(value, list):
        below = [found_by_walking(each) for each in value]
    elif isinstance(value, Structure):
        below = []
        for name in value._names():
            field = getattr(value, name)
            below.append({field: 1} if name in ERROR_FIELDS and field else found_by_walking(field))
    else:
        return counts
    for each in below:
        for code, count in each.items():
            counts[code] = counts.get(code, 0) + count
    return counts


def test_every_error_of_every_response_is_counted() -> None:
    """For all APIs and versions, every error code of a response is counted."""
    with_errors = 0
    for key in APIS:
        cls = response_class(key)
        for version in range(cls.VALID_VERSIONS[0], cls.VALID_VERSIONS[1] + 1):
            for message in generated(cls, version):
                expected = found_by_walking(message)
                assert counted(message, version) == expected, (cls, version)
                with_errors += bool(expected)
    assert with_errors > 100


def test_good_responses_add_nothing() -> None:
    """Responses with error code 0, null arrays or empty arrays add no counts."""
    good = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(0)] * 3)])
    assert counted(good, 12) == {}
    assert counted(MetadataResponse(), 12) == {}


def test_counts_are_added_to() -> None:
    """Counts are added to those already in the given dictionary, because one dictionary serves all responses of an
    API."""
    counts = {6: 1}
    bad = FetchResponse(
        error_code=70, responses=[FetchableTopicResponse("t", partitions=[PartitionData(0, 6)] * 2)]
    )
    codec.counting_encoder(FetchResponse, 12)(bytearray(), bad, None, counts)
    assert counts == {6: 3, 70: 1}
