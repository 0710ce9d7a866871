"""Waiting for bytes at descriptors of this machine, also in a process that has more than a thousand of them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import attrs
import pytest

from odradek.env.real_descriptors import readable

HIGH = 1500
"""Larger than every descriptor that `select.select` accepts."""


@attrs.define
class Pipe:
    """A pipe whose reading end has a high number."""

    reading: int
    writing: int
    closed: set[int] = attrs.field(factory=set)

    def close(self, descriptor: int) -> None:
        """Close an end, once. Its number may belong to another file afterwards."""
        if descriptor not in self.closed:
            self.closed.add(descriptor)
            os.close(descriptor)


@pytest.fixture
def high_pipe() -> Iterator[Pipe]:
    """Return a pipe, of which a test may close an end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= HIGH:
        pytest.skip(f"this machine allows {hard} descriptors a process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    low, writing = os.pipe()
    os.dup2(low, HIGH)
    os.close(low)
    pipe = Pipe(HIGH, writing)
    yield pipe
    pipe.close(HIGH)
    pipe.close(writing)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_bytes_at_a_high_descriptor_are_seen(high_pipe: Pipe) -> None:
    """A process with more than 1,024 descriptors waits for bytes like any other."""
    assert readable([HIGH], 0) == []
    os.write(high_pipe.writing, b"a")
    assert readable([HIGH]) == [HIGH]


def test_an_end_counts_as_bytes(high_pipe: Pipe) -> None:
    """When the writer has closed its end, the reader wakes: a read would return nothing."""
    high_pipe.close(high_pipe.writing)
    assert readable([HIGH], 10) == [HIGH]


def test_a_closed_descriptor_is_an_error(high_pipe: Pipe) -> None:
    """A closed descriptor raises. Otherwise a loop around the wait would never sleep again."""
    high_pipe.close(HIGH)
    with pytest.raises(ValueError, match="1500"):
        readable([HIGH], 0)


def test_the_time_ends(high_pipe: Pipe) -> None:
    """A wait ends after its time, even if no bytes have come."""
    assert readable([high_pipe.reading], 0.01) == []
