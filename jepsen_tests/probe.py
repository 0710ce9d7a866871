"""Asks one node, over a plain socket, which brokers there are and which controller is active.

Requests are encoded by hand, because librdkafka's admin client cannot ask one particular node with a time limit.
"""

from __future__ import annotations

import socket
import struct

_METADATA_V1 = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
_TOPIC = b"__cluster_metadata"
_DESCRIBE_QUORUM_V0 = (
    struct.pack(">hhihb", 55, 0, 1, -1, 0)
    + bytes((2, len(_TOPIC) + 1))
    + _TOPIC
    + bytes((2,))
    + struct.pack(">i", 0)
    + bytes((0, 0, 0))
)
_ANSWER_BYTES_MAX = 1 << 20


def brokers(host: str, port: int, timeout_seconds: float = 1.0) -> list[int]:
    """Return the ids of the brokers in this node's answer to Metadata (version 1); empty if it does not answer in
    time.
    """
    answer = _ask(host, port, _METADATA_V1, timeout_seconds)
    if answer is None:
        return []
    (count,) = struct.unpack_from(">i", answer, 4)
    found, position = [], 8
    for _ in range(count):
        (node,) = struct.unpack_from(">i", answer, position)
        found.append(node)
        position += 4
        position += 2 + struct.unpack_from(">h", answer, position)[0] + 4
        (rack,) = struct.unpack_from(">h", answer, position)
        position += 2 + max(rack, 0)
    return sorted(found)


def active_controller(host: str, port: int, timeout_seconds: float = 1.0) -> tuple[int, int] | None:
    """Ask a broker or a controller, by DescribeQuorum (version 0), for the leader of the metadata quorum. Return
    (leader id, leader epoch).

    Return None if the node is too slow to answer, or knows no leader.
    """
    answer = _ask(host, port, _DESCRIBE_QUORUM_V0, timeout_seconds)
    # The answer begins with correlation id, tags, error code, and one topic of this name with one partition: 4 + 1 +
    # 2 + 1 + 19 + 1 bytes.
    start = 9 + len(_TOPIC) + 1
    if answer is None or len(answer) < start + 14 or struct.unpack_from(">h", answer, 5)[0]:
        return None
    _, error, leader, epoch = struct.unpack_from(">ihii", answer, start)
    return None if error or leader < 0 else (leader, epoch)


def answers(host: str, port: int, timeout_seconds: float = 1.0) -> bool:
    """True if the node answers DescribeQuorum in time, even if only to say that it does not lead."""
    return _ask(host, port, _DESCRIBE_QUORUM_V0, timeout_seconds) is not None


def _ask(host: str, port: int, request: bytes, timeout_seconds: float) -> bytes | None:
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            stream = connection.makefile("rb")
            size = stream.read(4)
            if len(size) < 4 or not 4 <= int.from_bytes(size, "big") <= _ANSWER_BYTES_MAX:
                return None
            answer = stream.read(int.from_bytes(size, "big"))
            return answer if len(answer) == int.from_bytes(size, "big") else None
    except OSError:
        return None
