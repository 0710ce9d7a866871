"""Every request has a budget: even the most expensive legal megabyte of each API must not harm the node or its clients.

The frames come from `bench.budget`, which builds them from the message classes and a table of each API's expensive
fields. Assertions compare counts; `make costs` measures times.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from bench.budget.frames import (
    CLIENT_ID,
    Costly,
    Stage,
    costly_frame,
    count_elements,
    growing,
    grown_path,
    paths_of,
)
from bench.budget.holdings import RULED, Holdings
from bench.budget.lines import LINES
from bench.budget.stage import Client, Judged, judged_node
from odradek.data_plane.coordination.shards import DECISION_UNITS
from odradek.data_plane.handlers.fetching.fetch_job import READ_UNITS
from odradek.data_plane.handlers.grouping.group_offsets import DECIDED_UNITS
from odradek.data_plane.log.batch_work import RATION
from odradek.data_plane.transactions.marker_writer import APPEND_UNITS
from odradek.metadata_quorum.describing.describe_configs import RESOURCE_UNITS
from odradek.metadata_quorum.describing.describe_tokens import TOKEN_UNITS
from odradek.wire.api import request_class, request_header_version, response_class, response_header_version
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.compression import CHUNK_BYTES
from odradek.wire.codec import ELEMENTS_AT_ONCE, ELEMENTS_MAX, decode_bounded
from odradek.wire.codecs.codec_decode import make_decoder
from odradek.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from testkit.processes import memory_kib
from testkit.raw_requests import record_batch

PARTITIONS = 1000
FRAME_BYTES = 1 << 20
BOMBS_BYTES = 160 << 10
"""The size of a frame whose batches inflate to 128 MiB each. For a frame of a megabyte, zlib would need half a
minute."""
PEAK_MIB_MAX = 96
"""The most MiB by which a request may increase the node's memory. The budget is 64 MiB, and allocators take some
more."""
ANSWER_BYTES_MAX = 16 << 20
ANSWER_ELEMENTS_MAX = 400_000
"""The most array elements of a response, ten for each of a request: CreateTopics returns all configurations of a
topic."""
TURN_INFLATED_BYTES_MAX = 2 * RATION + 2 * CHUNK_BYTES
"""The most bytes that the loop decompresses in a turn: a `RATION` before the last batch begins, and one for that
batch."""
ZERO_SECONDS_MAX = 60.0

DECODED = "odradek_request_elements_total"
DESCRIBED = "odradek_described_total"
INFLATED = "odradek_broker_loop_inflated_bytes"
CLOSED = "odradek_protocol_errors_total"
COUNTED = (DECODED, DESCRIBED, INFLATED, CLOSED)
OFFSET_UNITS = 1 + DECIDED_UNITS + 1
"""Units of work for each offset: look-up, decision and answer."""
WEIGHTS = {
    ApiKey.DESCRIBE_CONFIGS: RESOURCE_UNITS,
    ApiKey.DELETE_GROUPS: DECISION_UNITS,
    ApiKey.DESCRIBE_TRANSACTIONS: DECISION_UNITS + 1,
    ApiKey.DESCRIBE_GROUPS: DECISION_UNITS + 2,
    ApiKey.OFFSET_FETCH: DECISION_UNITS + 2,
    ApiKey.FETCH: READ_UNITS,
    ApiKey.OFFSET_COMMIT: OFFSET_UNITS,
    ApiKey.OFFSET_DELETE: OFFSET_UNITS,
    ApiKey.WRITE_TXN_MARKERS: APPEND_UNITS,
}
"""Units of work for looking up one element, where this costs more than for a partition."""
HELD = (
    "odradek_receive_buffer_bytes",
    "odradek_answers_waiting_bytes",
    "odradek_send_queue_bytes",
    "odradek_requests_waiting",
    "odradek_long_work_waiting",
)
"""Gauges of the memory held by requests and responses. All are 0 at rest."""

HOLDINGS = Holdings(partitions=2_000)
"""The groups, users and so on that the node has. It has a fifth of the partitions of `make costs`, since electing all
their leaders is expensive."""
HELD_THINGS = {
    ApiKey.DESCRIBE_ACLS: len(RULED) * HOLDINGS.rules,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 2 * HOLDINGS.quotas,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: TOKEN_UNITS * HOLDINGS.tokens,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 2 * HOLDINGS.users,
    ApiKey.LIST_GROUPS: 2 * HOLDINGS.groups,
    ApiKey.LIST_TRANSACTIONS: 2 * HOLDINGS.transactional_ids,
}
"""Units of work for going through everything of one kind that the node has, for APIs that list it."""


def held(key: ApiKey) -> int:
    """Return the most units of work that a request of this API may take beside the units for its own elements."""
    return PARTITIONS + HELD_THINGS.get(key, 3 * HOLDINGS.partitions)


FRAMES = [(key, line) for key in LINES for line in LINES[key]]
LISTENERS = ("broker", "controller")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    with judged_node(tmp_path_factory.mktemp("judged"), PARTITIONS, HOLDINGS) as node:
        yield node


@pytest.fixture(scope="module")
def others(judged: Judged) -> Iterator[Client]:
    """An ordinary client's connection, open during all tests."""
    with Client(judged.process.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def served(judged: Judged) -> dict[str, dict[int, tuple[int, int]]]:
    """The served (oldest, newest) version of each API, by listener."""
    return {listener: judged.served(listener) for listener in LISTENERS}


def test_every_api_that_a_node_serves_has_a_line(served: dict[str, dict[int, tuple[int, int]]]) -> None:
    """Each served API has an entry in the table of expensive fields."""
    keys = {key for of_listener in served.values() for key in of_listener}
    assert {ApiKey(key).name for key in keys} == {key.name for key in LINES}


@pytest.mark.parametrize("key", LINES, ids=lambda key: key.name.lower())
def test_the_fields_of_a_line_exist(key: ApiKey) -> None:
    """Each field path in the table exists in some version. With a wrong path the tested frame would be cheap."""
    cls = request_class(key)
    low, high = cls.VALID_VERSIONS
    present = {path for version in range(low, high + 1) for path, _ in paths_of(cls, version)}
    for line in LINES[key]:
        assert set(growing(line, cls)) <= present, line
        assert line.grow or "Nothing in it grows" in line.why


def test_a_text_that_repeats_what_a_client_wrote_fits_into_the_answer(judged: Judged) -> None:
    """Errors that quote a client's long names are truncated, because a response string has at most 32,767 bytes."""
    long_id = RemoveRaftVoterRequest("\u20ac" * 10_000, 9, bytes(16))
    configs = [AlterableConfig(f"n{number}", None) for number in range(9000)]
    alter = AlterConfigsRequest([AlterConfigsResource(2, judged.stage.wide, configs)], True)
    with Client(judged.process.bootstrap) as client:
        assert client.ask(long_id, 0).error_message.endswith("...")
        assert client.ask(alter, 2).responses[0].error_message.endswith("...")


def produce_still_works(node: Judged, others: Client) -> None:
    """Check that a record of an ordinary client is accepted."""
    data = PartitionProduceData(0, record_batch(170, 1))
    topic = TopicProduceData(node.stage.narrow[0], bytes(16), [data])
    answer = others.ask(ProduceRequest(None, -1, 30_000, [topic]), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def name_of(frame: tuple[ApiKey, Costly]) -> str:
    key, line = frame
    return re.sub(r"\W+", "_", f"{key.name.lower()} {line.name}".strip())


def made(key: ApiKey, line: Costly, version: int, stage: Stage) -> tuple[bytes, int]:
    """Build the frame as large as allowed; return it with the number of elements in the request."""
    bytes_max = BOMBS_BYTES if line.name in ("zstd", "gzip") else FRAME_BYTES
    data, request = costly_frame(line, key, version, bytes_max, stage)
    elements = count_elements(request)
    assert len(data) <= bytes_max
    assert elements <= ELEMENTS_MAX
    path = grown_path(line, type(request), version)
    if path is not None and dict(paths_of(type(request), version))[path] and line.body is None:
        # The frame must be nearly as large as one of the limits allows.
        assert len(data) > bytes_max * 0.6 or elements > ELEMENTS_MAX * 0.9 or line.count
    return data, elements


def body_at(key: ApiKey, version: int) -> int:
    """Return where the request begins in its frame, after the size, the header, the client id and the tags."""
    return 4 + 8 + 2 + len(CLIENT_ID) + (request_header_version(key, version) >= 2)


def elements_told(answer: bytes, key: ApiKey, version: int) -> int:
    """Count the array elements of a response. Raises `TooManyElements`."""
    decode = make_decoder(response_class(key), version, ANSWER_ELEMENTS_MAX, counts=True)
    told: int = decode(answer, 4 + (response_header_version(key, version) >= 1))[1]
    return told


def figure(figures: dict[str, float], name: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum(value for each, value in figures.items() if each.partition("{")[0] == name)


def different_versions(key: ApiKey, served: list[int]) -> list[int]:
    """Return the versions to test: the oldest, and the newest of each group with the same header and fields."""
    newest = {}
    for version in served:
        form = request_header_version(key, version), frozenset(paths_of(request_class(key), version))
        newest[form] = version
    return sorted({served[0], *newest.values()})


class Ledger:
    """The growth of the node's counters since the previous reading. Each reading first waits until the node is at rest."""

    def __init__(self, node: Judged) -> None:
        self._node = node
        self._before = figures_at_rest(node)

    def grown(self) -> dict[str, float]:
        after = figures_at_rest(self._node)
        before, self._before = self._before, after
        return {name: figure(after, name) - figure(before, name) for name in COUNTED}


@pytest.fixture(scope="module")
def ledger(judged: Judged) -> Ledger:
    return Ledger(judged)


def figures_at_rest(node: Judged) -> dict[str, float]:
    """Wait until no connection holds memory for requests or responses; return the metrics."""
    deadline = time.monotonic() + ZERO_SECONDS_MAX
    while True:
        figures = node.figures()
        held = {name: figures[name] for name in HELD if figures[name]}
        if not held:
            return figures
        assert time.monotonic() < deadline, held


def test_what_refused_batches_took_comes_back(judged: Judged, others: Client) -> None:
    """Hundreds of batches that inflate too much are refused repeatedly. Their decompressed bytes are released."""
    line = next(line for line in LINES[ApiKey.PRODUCE] if line.name == "zstd")
    data, _ = costly_frame(line, ApiKey.PRODUCE, 13, FRAME_BYTES, judged.stage)
    with Client(judged.process.bootstrap) as client:
        assert client.exchange(data) is not None
        base = memory_kib(judged.process.pid, "VmRSS")
        for _ in range(8):
            assert client.exchange(data) is not None
    produce_still_works(judged, others)
    grown = (memory_kib(judged.process.pid, "VmRSS") - base) // 1024
    assert grown <= PEAK_MIB_MAX, f"the node keeps {grown} MiB after eight frames"


@pytest.mark.parametrize("frame", FRAMES, ids=name_of)
def test_the_most_expensive_frame_stays_within_the_budget(
    judged: Judged,
    others: Client,
    ledger: Ledger,
    served: dict[str, dict[int, tuple[int, int]]],
    frame: tuple[ApiKey, Costly],
) -> None:
    """The most expensive frame of each API stays within all limits: decoding, look-ups, decompression on the loop,
    memory."""
    key, line = frame
    pid = judged.process.pid
    bugs_before = judged.process.log_path.read_text().count("connection.bug")
    versions = {listener: set(served[listener].get(key, ())) for listener in LISTENERS}
    for version in different_versions(key, sorted(set().union(*versions.values()))):
        if version < line.since:
            continue
        data, elements = made(key, line, version, judged.stage)
        listeners = [each for each in LISTENERS if version in versions[each]]
        if line.needs_login:
            listeners = ["login"]
        # Broker and controller use the same code, so the oldest version is sent only to the first listener.
        for listener in listeners[: None if version == max(versions["broker"], default=version) else 1]:
            judged.reset_peak()
            base = memory_kib(pid, "VmRSS")
            with Client(judged.address(listener)) as client:
                answer = client.exchange(data)
            assert judged.process.is_running(), judged.process.log_tail()
            produce_still_works(judged, others)
            peak = (memory_kib(pid, "VmHWM") - base) // 1024
            assert peak <= PEAK_MIB_MAX, f"version {version} took {peak} MiB at its peak"
            grown = ledger.grown()
            assert grown[INFLATED] <= TURN_INFLATED_BYTES_MAX
            if answer is None:
                assert grown[CLOSED], "only a counted protocol error may close the connection"
                decode_bounded(request_class(key), version, data, body_at(key, version))
                continue
            # Tagged fields count as elements, too.
            assert (elements if elements > ELEMENTS_AT_ONCE else 0) <= grown[DECODED] <= ELEMENTS_MAX
            assert len(answer) <= ANSWER_BYTES_MAX
            # Each element of a response takes at least one byte.
            told, looked_up = 0, WEIGHTS.get(key, 1) * elements + held(key)
            if len(answer) > ANSWER_ELEMENTS_MAX or grown[DESCRIBED] > looked_up:
                told = elements_told(answer, key, version)
            assert grown[DESCRIBED] <= looked_up + told, "things must be described only once"
    assert judged.process.log_path.read_text().count("connection.bug") == bugs_before, (
        judged.process.log_tail()
    )
