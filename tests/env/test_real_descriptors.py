"""Waiting for bytes at descriptors of this machine, also in a process that has more than a thousand of them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress

import pytest

from odradek.env.real_descriptors import readable

HIGH = 1500
"""Larger than every descriptor that `select.select` accepts."""


@pytest.fixture
def high_pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has a high number: reading end, writing end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= HIGH:
        pytest.skip(f"this machine allows {hard} descriptors a process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    low, writing = os.pipe()
    os.dup2(low, HIGH)
    os.close(low)
    yield HIGH, writing
    for descriptor in (HIGH, writing):
        with suppress(OSError):  # Some tests close an end themselves.
            os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_bytes_at_a_high_descriptor_are_seen(high_pipe: tuple[int, int]) -> None:
    """A process with more than 1,024 descriptors waits for bytes like any other."""
    reading, writing = high_pipe
    assert readable([reading], 0) == []
    os.write(writing, b"a")
    assert readable([reading]) == [reading]


def test_an_end_counts_as_bytes(high_pipe: tuple[int, int]) -> None:
    """When the writer has closed its end, the reader wakes: a read would return nothing."""
    reading, writing = high_pipe
    os.close(writing)
    assert readable([reading], 10) == [reading]


def test_a_closed_descriptor_is_an_error(high_pipe: tuple[int, int]) -> None:
    """A closed descriptor raises. Otherwise a loop around the wait would never sleep again."""
    reading, _ = high_pipe
    os.close(reading)
    with pytest.raises(ValueError, match="1500"):
        readable([reading], 0)


def test_the_time_ends(high_pipe: tuple[int, int]) -> None:
    """A wait ends after its time, even if no bytes have come."""
    reading, _ = high_pipe
    assert readable([reading], 0.01) == []
