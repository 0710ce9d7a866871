"""Encoders that count the error codes which they write: against a walk over the whole response."""

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
    """Return the counts; the bytes must be those of the plain encoder."""
    counts: dict[int, int] = {}
    w = bytearray()
    codec.counting_encoder(type(response), version)(w, response, None, counts)
    assert w == codec.encode(response, version)
    return counts


def found_by_walking(value: Any) -> dict[int, int]:
    """Return the oracle's counts: every field by name, at any depth."""
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
    """For all APIs, at all versions, with the values of the codec's tests."""
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
    """0 is no error; null and empty arrays are passed over."""
    good = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(0)] * 3)])
    assert counted(good, 12) == {}
    assert counted(MetadataResponse(), 12) == {}


def test_counts_are_added_to() -> None:
    """One dictionary serves all responses of an API."""
    counts = {6: 1}
    bad = FetchResponse(
        error_code=70, responses=[FetchableTopicResponse("t", partitions=[PartitionData(0, 6)] * 2)]
    )
    codec.counting_encoder(FetchResponse, 12)(bytearray(), bad, None, counts)
    assert counts == {6: 3, 70: 1}
