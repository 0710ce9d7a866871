"""Sends many small requests over pipelined connections, to measure the server's CPU microseconds per request.

    python -m bench.hot_path.small_requests '{"kind": "produce", ...}'

The program keeps `depth` requests in flight on each of `connections` sockets, and sends a new one for every answer.
All requests of a run have the same bytes. Like `bench.throughput.client` it prints `ready`, waits for a line, and
prints its figures as JSON. So the parent process can read the server's CPU clock before and after.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress

import attrs
import cattrs

from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.raw_requests import check_answer, connect, exchange, framed, record_batch

PRODUCE_VERSION = 9
FETCH_VERSION = 12
METADATA_VERSION = 12
FETCH_BYTES = 16384
TIMEOUT_SECONDS = 30.0
_LENGTH = struct.Struct(">i")
_NOTHING = memoryview(b"")


@attrs.frozen
class Kind:
    """A kind of small request, and how many are in flight. A Produce has one batch of `batch_bytes` bytes with
    `records` records.
    """

    name: str
    title: str
    batch_bytes: int = 0
    records: int = 1
    connections: int = 16
    depth: int = 8
    partitions: int = 1
    codec: str = ""
    """The topic's `compression.type`; empty if the topic keeps the default."""


KINDS = (
    Kind("produce-alone", "Produce of one 100 B record, nothing else under way", 170, 1, 1, 1),
    Kind("produce-100b", "Produce of one 100 B record", 170, 1),
    Kind("produce-16k", "Produce of a 16 KiB batch of 16 records", 16384, 16),
    Kind("fetch-16k", "Fetch of one 16 KiB batch"),
    Kind("metadata", "Metadata of one topic"),
)
STORED = Kind("produce-stored", "What a Fetch finds", 16384, 16)


@attrs.frozen
class Drive:
    """One run of this program: the kind of request, the server and the duration."""

    kind: Kind
    bootstrap: str
    topic: str
    seconds: float
    address: str = ""
    """The address of the listener to use, if it is not `bootstrap`."""
    authority: str = ""
    """The file with the certificate authority of a TLS listener; empty without TLS."""


@attrs.frozen
class DriveResult:
    """The number of answers between start and end, and the seconds in between."""

    requests: int
    seconds: float


def request_frame(kind: Kind, topic: str) -> tuple[bytes, int, int]:
    """Return the frame that a run repeats, with its API key and version."""
    if kind.name.startswith("produce"):
        batch = record_batch(kind.batch_bytes, kind.records)
        data = [PartitionProduceData(index, memoryview(batch)) for index in range(kind.partitions)]
        request = ProduceRequest(None, -1, 30_000, [TopicProduceData(topic, partition_data=data)])
        return framed(ApiKey.PRODUCE, PRODUCE_VERSION, request), ApiKey.PRODUCE, PRODUCE_VERSION
    if kind.name.startswith("fetch"):
        partition = FetchPartition(partition=0, partition_max_bytes=FETCH_BYTES)
        fetch = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES)
        fetch.topics = [FetchTopic(topic, partitions=[partition])]
        return framed(ApiKey.FETCH, FETCH_VERSION, fetch), ApiKey.FETCH, FETCH_VERSION
    metadata = MetadataRequest([MetadataRequestTopic(name=topic)])
    return framed(ApiKey.METADATA, METADATA_VERSION, metadata), ApiKey.METADATA, METADATA_VERSION


def _connect(task: Drive) -> socket.socket:
    """Connect to the listener. If the server still refuses TLS connections after a flood, retry."""
    address = task.address or task.bootstrap
    if not task.authority:
        return connect(address)
    context = ssl.create_default_context(cafile=task.authority)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        connection = connect(address)
        try:
            return context.wrap_socket(connection, server_hostname=connection.getpeername()[0])
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@attrs.define
class Line:
    """One connection, with the incomplete bytes of an answer and the bytes that still have to be sent."""

    connection: socket.socket
    received: bytearray = attrs.field(factory=bytearray)
    unsent: memoryview = _NOTHING


def drive(task: Drive) -> DriveResult:
    """Send requests for `task.seconds`, after a line was read from standard input."""
    frame, api_key, version = request_frame(task.kind, task.topic)
    if task.kind.name.startswith("fetch"):
        filling, *produce = request_frame(STORED, task.topic)
        check_answer(exchange(task.bootstrap, filling, *produce))
    check_answer(exchange(task.bootstrap, frame, api_key, version))
    repeated = [memoryview(frame * count) for count in range(task.kind.depth + 1)]
    selector = selectors.DefaultSelector()
    lines = [Line(_connect(task)) for _ in range(task.kind.connections)]
    for line in lines:
        line.connection.setblocking(False)
        selector.register(line.connection, selectors.EVENT_READ, line)
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")
    for line in lines:
        _send(selector, line, repeated[task.kind.depth])
    requests, started = 0, time.perf_counter()
    deadline = started + task.seconds
    while time.perf_counter() < deadline:
        for key, events in selector.select(1.0):
            line = key.data
            if events & selectors.EVENT_WRITE:
                _send(selector, line, _NOTHING)
            if events & selectors.EVENT_READ and (answered := _receive(line)):
                requests += answered
                _send(selector, line, repeated[answered])
    result = DriveResult(requests, time.perf_counter() - started)
    for line in lines:
        line.connection.close()
    return result


def _receive(line: Line) -> int:
    """Read all bytes that have arrived. Return the number of answers that are complete now."""
    received = line.received
    if isinstance(line.connection, ssl.SSLSocket):
        received += _decrypted(line.connection)
    else:
        data = line.connection.recv(1 << 18)
        if not data:
            raise RuntimeError("the server closed a connection")
        received += data
    answered = start = 0
    while len(received) - start >= 4:
        stop = start + 4 + _LENGTH.unpack_from(received, start)[0]
        if stop > len(received):
            break
        start = stop
        answered += 1
    del received[:start]
    return answered


def _decrypted(connection: ssl.SSLSocket) -> bytearray:
    """Return all decrypted bytes, because the selector does not report bytes that are decrypted already."""
    found = bytearray()
    with suppress(ssl.SSLWantReadError):
        while data := connection.recv(1 << 18):
            found += data
        raise RuntimeError("the server closed a connection")
    return found


def _send(selector: selectors.BaseSelector, line: Line, more: memoryview) -> None:
    """Send the waiting bytes and then `more`. Wait for writability only while bytes are left."""
    waiting = bool(line.unsent)
    pending = memoryview(bytes(line.unsent) + bytes(more)) if waiting else more
    try:
        sent = line.connection.send(pending)
    except (BlockingIOError, ssl.SSLWantWriteError):
        sent = 0
    line.unsent = pending[sent:]
    if waiting != bool(line.unsent):
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
        selector.modify(line.connection, wanted, line)


def main() -> None:
    """Run the task in the only argument, and print its result as JSON."""
    print(json.dumps(attrs.asdict(drive(cattrs.structure(json.loads(sys.argv[1]), Drive)))), flush=True)


if __name__ == "__main__":
    main()
