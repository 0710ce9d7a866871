"""Error messages, which may quote names from a client's request."""

from __future__ import annotations

import pickle
from itertools import repeat

import pytest

from odradek.data_plane.log.record_rules import RecordsRefused
from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb, InvalidRecord
from odradek.wire.errors import MESSAGE_CHARACTERS_MAX, ErrorCode, KafkaError, listed


def test_of_many_names_only_as_many_are_read_as_a_text_holds() -> None:
    """Only as many names of a request are read as fit into the message, and the message ends with "..."."""
    error = KafkaError(ErrorCode.INVALID_REQUEST, f"Names: {listed(repeat('name'))}")
    assert len(error.message) == MESSAGE_CHARACTERS_MAX + 3
    assert error.message.endswith("...")
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b"], ",") == "a,b"
    assert listed([]) == ""


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(ErrorCode.UNKNOWN_TOPIC_ID),
        CorruptBatch("the checksum of the record batch is wrong"),
        DecompressionBomb("too large"),
        InvalidRecord("no key"),
        RecordsRefused(ErrorCode.INVALID_RECORD, "no key", [(3, "no key")]),
    ],
)
def test_an_error_comes_whole_out_of_another_process(error: KafkaError) -> None:
    """An error survives pickling with its type and code, because a companion process passes errors to the node this
    way."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
