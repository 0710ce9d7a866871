"""Requests are built from names, and names are read from responses, as `ROWS` describes for each API."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.api import request_class
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_records import DeleteRecordsPartition
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from odradek.wire.schema.anatomy import anatomy
from odradek.wire.schema.anatomy_rows import ROWS
from tests.schedule import examples

OF_PARTITIONS = [
    api for api, rows in ROWS.items() if rows[0].things.count("/") == 1 and not rows[0].things.endswith("*")
]
BY_NUMBER = [api for api, rows in ROWS.items() if rows[0].things.count("/") == 1 and api not in OF_PARTITIONS]
NAMES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=12)


@pytest.mark.parametrize("api", OF_PARTITIONS + BY_NUMBER, ids=lambda api: api.name)
@given(names=NAMES)
@settings(max_examples=examples(30))
def test_an_answer_names_all_that_was_asked(api: ApiKey, names: list[tuple[str, int]]) -> None:
    """A response names everything in the request: topics by first appearance, partitions in order. Only some APIs
    answer a repeated name just once."""
    shape = anatomy(api, 0)
    element, inner = shape._levels[0][1].element, shape._levels[0][1].names[0]
    request = request_class(api)()
    if api in BY_NUMBER:
        asked = shape.asking(request, names)
    else:
        asked = shape.asking(request, names, lambda name: element(**{inner: name[1]}))
    topics = dict.fromkeys(topic for topic, _ in names)
    expected = [name for topic in topics for name in names if name[0] == topic]
    found = list(shape.named_results(shape.refuse_each(asked, ErrorCode.NOT_COORDINATOR)))
    expected = list(dict.fromkeys(expected)) if shape.row.once else expected
    assert [name for name, _ in found] == expected
    assert all(getattr(result, shape.row.code) == ErrorCode.NOT_COORDINATOR for _, result in found)
    assert request == request_class(api)(), "the given request must not change"


def test_names_go_through_all_levels() -> None:
    """A marker's result is named by producer id, topic and partition."""
    results = [WritableTxnMarkerPartitionResult(index, index) for index in (4, 0)]
    topics = [WritableTxnMarkerTopicResult("a", results[:1]), WritableTxnMarkerTopicResult("b", results[1:])]
    response = WriteTxnMarkersResponse([WritableTxnMarkerResult(7, topics), WritableTxnMarkerResult(8, [])])
    found = list(anatomy(ApiKey.WRITE_TXN_MARKERS, 0).named_results(response))
    assert found == [((7, "a", 4), results[0]), ((7, "b", 0), results[1])]


def test_results_one_by_one() -> None:
    """Results can be made one by one for a partition, and then for the topic around it."""
    shape = anatomy(ApiKey.DELETE_RECORDS, 0)
    thing = DeleteRecordsPartition(3, 100)
    request = shape.asking(request_class(ApiKey.DELETE_RECORDS)(), [("a", 3)], lambda _: thing)
    assert request.topics[0].partitions == [thing]
    result = shape.result(thing, ErrorCode.NONE)
    assert (result.partition_index, result.error_code, result.low_watermark) == (3, 0, -1)
    around = shape.around(request.topics[0], [result])
    assert (around.name, around.partitions) == ("a", [result])
