"""Subscriptions and assignments of members of the classic protocol, encoded by hand."""

from __future__ import annotations

__all__ = ["assignment", "subscription"]


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """Encode a subscription of version 1."""
    body = (1).to_bytes(2, "big") + _number(len(topics)) + b"".join(map(_text, topics)) + b"\xff\xff\xff\xff"
    body += _number(len(owned or {}))
    for topic, partitions in (owned or {}).items():
        body += _text(topic) + _number(len(partitions)) + b"".join(map(_number, partitions))
    return body


def assignment(topic: str, partitions: list[int]) -> bytes:
    """Encode an assignment of version 1 with partitions of one topic."""
    numbers = _number(len(partitions)) + b"".join(map(_number, partitions))
    return (1).to_bytes(2, "big") + _number(1) + _text(topic) + numbers + b"\xff\xff\xff\xff"


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")
