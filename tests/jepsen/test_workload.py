"""The clients' values are recognized among other bytes, and the restart of a producer is noticed."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_tests.history import CORRUPT, Restart
from jepsen_tests.workload import Recorder, RestartListener, parse_payload, payload


@given(st.integers(0, 1 << 40), st.integers(0, 300))
def test_payload_carries_its_value(value: int, size: int) -> None:
    """A payload of any size contains its value."""
    assert parse_payload(payload(value, size)) == value


@given(st.integers(0, 10_000), st.data())
def test_changed_bytes_are_seen(value: int, data: st.DataObject) -> None:
    """If any one byte changes, the payload is never read as another value."""
    written = bytearray(payload(value, 20))
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    assert parse_payload(bytes(written)) == CORRUPT


@pytest.mark.parametrize("foreign", [None, b"", b"7", b"7:", b":1:", b"x:1:y", b"12:0:12."])
def test_foreign_bytes_are_no_value(foreign: bytes | None) -> None:
    """Bytes of another origin are no value of this run."""
    assert parse_payload(foreign) == CORRUPT


def test_restart_of_a_producer_is_recorded() -> None:
    """librdkafka's debug log shows when it gives up its producer epoch. Other lines of the log are ignored."""
    recorder = Recorder()
    logger = RestartListener(recorder, "producer-1.1").logger()
    logger.log(logging.DEBUG, "DRAIN t [0] beginning partition drain: wait for outstanding requests")
    assert recorder.history.operations == []
    logger.log(logging.DEBUG, "DRAIN Beginning partition drain in state Assigned for idempotent epoch bump")
    (heard,) = recorder.history.operations
    assert isinstance(heard, Restart)
    assert heard.process == "producer-1.1"
