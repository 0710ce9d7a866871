"""Invalid frames get an error or a closed connection. They never cause a crash, a hang or unbounded memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from odradek.wire.api import ApiKey, api_versions, request_class
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.metadata import MetadataRequest
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient, frame
from tests.node_process import RunningNode

SERVED = (*range(4), *range(8, 52))
SERVED += (55, 57, 60, 61, 64, 65, 66, 68, 69, 71, 72, 74, 75, 80, 81)
MUTATIONS = 10_000
HELLO = ApiVersionsRequest("tests", "1")


@pytest.fixture
def server(node: RunningNode) -> Iterator[ServerProcess]:
    """The node's process. After each test it must be alive and answer at once."""
    if node.process is None:
        pytest.skip("ODRADEK_TEST_BOOTSTRAP names the server, and the test needs a process of its own")
    yield node.process
    assert node.process.is_running(), node.process.log_tail()
    with RawClient(node.bootstrap) as client:
        assert client.request(HELLO, 3).error_code == 0


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 0),
        struct.pack(">i", 9) + bytes(9),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 104857601),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, -1, 0, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.METADATA, 99, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.METADATA, -1, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.PRODUCE, 2, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.METADATA, 1, 1, 32767),
        struct.pack(">ihhih", 14, ApiKey.METADATA, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">ihhih", 12, ApiKey.METADATA, 1, 1, 2) + b"\xff\xfe",
    ],
    ids=lambda data: data[:14].hex(),
)
def test_a_frame_that_is_none_closes_its_connection(server: ServerProcess, data: bytes) -> None:
    """Bytes that are not a valid request (bad length, unknown API or version, another protocol) close the
    connection."""
    with RawClient(server.bootstrap) as client:
        client.send(data)
        assert client.is_closed_by_node()


def test_api_versions_of_the_future_get_a_version_0_answer(server: ServerProcess) -> None:
    """An ApiVersions of an unknown version gets UNSUPPORTED_VERSION in a version 0 response. The connection stays open
    (KIP-511)."""
    with RawClient(server.bootstrap) as client:
        request = frame(HELLO, 3)
        struct.pack_into(">h", request, 6, 77)
        client.send(request)
        answer = client.receive(ApiKey.API_VERSIONS, 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys] == [(18, 0, 4)]
        assert client.request(HELLO, 3).error_code == 0


def test_advertised_is_what_is_served(server: ServerProcess) -> None:
    """ApiVersions lists exactly the served APIs with Kafka 4.3's versions. Produce begins at version 0
    (KAFKA-18659)."""
    with RawClient(server.bootstrap) as client:
        answer = client.request(HELLO, 3)
    ranges = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    assert ranges == {key: api_versions(key) for key in SERVED} | {0: (0, 13)}


def test_ten_thousand_mutated_frames(server: ServerProcess) -> None:
    """Mutations of valid frames of every API and version do not stop the node from serving others."""
    rng = random.Random(20261121)
    valid = [
        frame(request_class(key)(), version)
        for key in SERVED
        for version in range(api_versions(key)[0], api_versions(key)[1] + 1)
        if key != ApiKey.CREATE_TOPICS
    ]
    client = RawClient(server.bootstrap)
    observer = RawClient(server.bootstrap)
    for count in range(MUTATIONS):
        data = bytearray(rng.choice(valid))
        mutate(rng, data)
        if rng.random() < 0.7:
            struct.pack_into(">i", data, 0, len(data) - 4)
        try:
            client.send(data)
            if count % 10 == 9:
                raise ConnectionError("change to a new connection")
        except ConnectionError:
            client.socket.close()
            client = RawClient(server.bootstrap)
        if count % 500 == 0:
            assert observer.request(HELLO, 3).error_code == 0
    client.socket.close()
    assert observer.request(MetadataRequest([]), 12).cluster_id
    observer.socket.close()


def mutate(rng: random.Random, data: bytearray) -> None:
    """Damage the bytes after the size field in one to four random places."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(4, len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2 and len(data) > 16:
            del data[at : at + rng.randint(1, 8)]
            if len(data) < 5:
                data += bytes(8)
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            data[at : at + 4] = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1, -(2**31), 65536)))


def send_times(client: RawClient, data: bytes, times: int) -> None:
    """Send the same bytes repeatedly."""
    for _ in range(times):
        client.send(data)


def test_announced_memory_is_not_allocated(server: ServerProcess) -> None:
    """200 connections announce 90 MB each and send 100 bytes. Others are served, and memory does not grow."""
    before = server.rss_kib()
    greedy = [RawClient(server.bootstrap) for _ in range(200)]
    for client in greedy:
        client.send(struct.pack(">i", 90_000_000) + bytes(100))
    with RawClient(server.bootstrap) as client:
        for _ in range(50):
            assert client.request(HELLO, 3).error_code == 0
    grown = server.rss_kib() - before
    for client in greedy:
        client.socket.close()
    assert grown < 20 * 1024, f"memory grew by {grown} KiB"


def test_half_a_frame_harms_nobody(server: ServerProcess) -> None:
    """A frame that arrives byte by byte is answered. Other connections are served in between."""
    request = frame(MetadataRequest([]), 12)
    with RawClient(server.bootstrap) as slow, RawClient(server.bootstrap) as fast:
        for byte in request:
            slow.send(bytes([byte]))
            assert fast.request(HELLO, 3).error_code == 0
        assert slow.receive(ApiKey.METADATA, 12).cluster_id


def test_answers_keep_the_order_of_requests(server: ServerProcess) -> None:
    """Hundreds of pipelined requests in one write, more than one turn takes, are answered in order."""
    with RawClient(server.bootstrap) as client:
        client.send(b"".join(frame(MetadataRequest([]), 12, serial) for serial in range(700)))
        answered = [struct.unpack_from(">i", client.read_frame())[0] for _ in range(700)]
    assert answered == list(range(700))


def test_a_client_that_never_reads_does_not_grow_the_node(server: ServerProcess) -> None:
    """If a peer reads no responses, the node stops reading its requests, and memory stays bounded."""
    before = server.rss_kib()
    client = RawClient(server.bootstrap, timeout_seconds=2.0)
    request = bytes(frame(HELLO, 3)) * 1000
    with pytest.raises(TimeoutError):
        send_times(client, request, 20_000)
    grown = server.rss_kib() - before
    client.socket.close()
    assert grown < 64 * 1024, f"memory grew by {grown} KiB"
