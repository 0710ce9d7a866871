"""Every request has a budget: the most expensive legal megabyte of each API leaves a node, its memory and its clients in peace.

The frames come from `bench.budget`, which makes them from the message classes and its table of what makes each API
expensive. What is asserted can be counted; times are measured by `make costs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from bench.budget.frames import Costly, costly_request, count_elements, framed, grown_path, paths_of
from bench.budget.lines import LINES
from bench.budget.stage import Client, Judged, answered, judged_node
from bench.processes import memory_kib
from bench.small_requests import record_batch
from wire.api import request_class
from wire.api_keys import APIS, ApiKey
from wire.codec import ELEMENTS_MAX, decode_bounded, encode
from wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.messages.remove_raft_voter import RemoveRaftVoterRequest

PARTITIONS = 1000
FRAME_BYTES = 1 << 20
SMALLER_BYTES = 160 << 10
"""Where only the making of frames is looked at."""
BOMBS_BYTES = 160 << 10
"""Bytes of batches that inflate to 128 MiB each: a megabyte of them is half a minute of zlib, whoever does it."""
PEAK_MIB_MAX = 96
"""64 MiB are the budget; allocators take some more."""
ANSWER_BYTES_MAX = 16 << 20
ANSWER_ELEMENTS_MAX = 400_000
"""Ten for each element of a request: a topic that is made is answered with all of its configuration."""

FRAMES = [
    (listener, key, line)
    for listener, of_listener in (("broker", "on_broker"), ("controller", "on_controller"))
    for key in LINES
    if getattr(APIS[key], of_listener)
    for line in LINES[key]
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    with judged_node(tmp_path_factory.mktemp("judged"), PARTITIONS) as node:
        yield node


def test_every_api_that_a_node_serves_has_a_line(judged: Judged) -> None:
    """Who adds an API says what makes it expensive."""
    served = {key for listener in ("broker", "controller") for key in judged.served(listener)}
    assert {ApiKey(key).name for key in served} == {key.name for key in LINES}


@pytest.mark.parametrize("key", LINES, ids=lambda key: key.name.lower())
def test_the_fields_of_a_line_exist(key: ApiKey) -> None:
    """A path that no version has would make a cheap frame and tell nothing."""
    cls = request_class(key)
    low, high = cls.VALID_VERSIONS
    present = {path for version in range(low, high + 1) for path, _ in paths_of(cls, version)}
    for line in LINES[key]:
        assert set(line.grow) <= present, line
        assert line.grow or "Nothing in it grows" in line.why


def test_frames_are_as_large_as_they_may_be(judged: Judged) -> None:
    """A frame has the size asked for, or the most elements, or the longest string; and it decodes."""
    for key, lines in LINES.items():
        cls = request_class(key)
        for line in lines:
            version = cls.VALID_VERSIONS[1]
            request = costly_request(line, key, version, SMALLER_BYTES, judged.stage)
            data = encode(request, version)
            assert len(data) <= SMALLER_BYTES
            assert count_elements(request) <= ELEMENTS_MAX
            assert type(decode_bounded(cls, version, data)) is cls
            path = grown_path(line, cls, version)
            if path is not None and dict(paths_of(cls, version))[path] and line.body is None:
                # One more element of its size would not fit in either bound.
                more = len(data) > SMALLER_BYTES * 0.6 or count_elements(request) > ELEMENTS_MAX * 0.9
                assert more or line.count, (key, line.name)


def test_a_text_that_repeats_what_a_client_wrote_fits_into_the_answer(judged: Judged) -> None:
    """Long names and many of them come back in errors, cut: a string of an answer has at most 32,767 bytes."""
    long_id = RemoveRaftVoterRequest("\u20ac" * 10_000, 9, bytes(16))
    configs = [AlterableConfig(f"n{number}", None) for number in range(9000)]
    alter = AlterConfigsRequest([AlterConfigsResource(2, judged.stage.wide, configs)], True)
    with Client(judged.process.bootstrap) as client:
        assert client.ask(long_id, 0).error_message.endswith("...")
        assert client.ask(alter, 2).responses[0].error_message.endswith("...")


def served_versions(node: Judged, listener: str, key: ApiKey) -> list[int]:
    low, high = node.served(listener)[key]
    return sorted({low, high})


def produce_still_works(node: Judged) -> None:
    """An ordinary client's record is taken."""
    data = PartitionProduceData(0, record_batch(170, 1))
    with Client(node.process.bootstrap) as client:
        answer = client.ask(
            ProduceRequest(None, -1, 30_000, [TopicProduceData(node.stage.narrow[0], bytes(16), [data])]), 9
        )
    assert answer.responses[0].partition_responses[0].error_code == 0


def name_of(frame: tuple[str, ApiKey, Costly]) -> str:
    listener, key, line = frame
    return re.sub(r"\W+", "_", f"{listener} {key.name.lower()} {line.name}".strip())


@pytest.mark.parametrize("frame", FRAMES, ids=name_of)
def test_the_most_expensive_frame_stays_within_the_budget(
    judged: Judged, frame: tuple[str, ApiKey, Costly]
) -> None:
    """It is answered or its connection closed; the answer is in proportion, memory bounded, others are served."""
    listener, key, line = frame
    pid = judged.process.pid
    closed_before = judged.figures()["odradek_protocol_errors_total"]
    bugs_before = judged.process.log_path.read_text().count("connection.bug")
    frame_bytes = BOMBS_BYTES if line.name in ("zstd", "gzip") else FRAME_BYTES
    for version in served_versions(judged, listener, key):
        data = framed(costly_request(line, key, version, frame_bytes, judged.stage), version)
        judged.reset_peak()
        base = memory_kib(pid, "VmRSS")
        with Client(judged.address(listener)) as client:
            answer = client.exchange(data)
        assert judged.process.is_running(), judged.process.log_tail()
        produce_still_works(judged)
        peak = (memory_kib(pid, "VmHWM") - base) // 1024
        assert peak <= PEAK_MIB_MAX, f"version {version} took {peak} MiB"
        if answer is not None:
            assert len(answer) <= ANSWER_BYTES_MAX
            assert count_elements(answered(answer, key, version)) <= ANSWER_ELEMENTS_MAX
        else:
            closed = judged.figures()["odradek_protocol_errors_total"]
            assert closed > closed_before, (
                "a connection closes for bytes that are over a bound, and it is counted"
            )
            closed_before = closed
    assert judged.process.log_path.read_text().count("connection.bug") == bugs_before, (
        judged.process.log_tail()
    )
