"""The clients that a process keeps between tasks, and between batches: producers, and clients of the decisions topic.
SHELL.

Spark keeps its Python processes. So their connections, metadata and positions in the decisions topic are kept, too. A
kept producer gets another transactional id for each use, and starts as a new producer does: it fences earlier
producers with that id.

A client that is in use is not among the kept ones, so each has one user. After an error it is closed instead of kept.
A forked process makes its own clients.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from odradek.client.errors import ProducerFencedError
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.decisions import Decisions
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["fencing", "kept_decisions", "kept_producer"]

_CLOSE_SECONDS_MAX = 1.0
_KEPT_MAX = 8
"""The largest number of clients of each kind that a process keeps. Beyond this number, the least recently used client
is closed. Each client has a thread, and a producer has up to `buffer.memory` bytes.
"""
_Identity = tuple[object, ...]


class _Closable(Protocol):
    def close(self, timeout: float | None = None, /) -> None: ...


_Kept = TypeVar("_Kept", bound=_Closable)
_producers: dict[_Identity, Producer] = {}
_decisions: dict[_Identity, Decisions] = {}


def _keep(kept: dict[_Identity, _Kept], identity: _Identity, client: _Kept) -> None:
    """Keep a client that is no longer in use. Another one with the same identity may be kept already."""
    if identity in kept:
        client.close(_CLOSE_SECONDS_MAX)
        return
    while len(kept) >= _KEPT_MAX:
        kept.pop(next(iter(kept))).close(_CLOSE_SECONDS_MAX)
    kept[identity] = client


@contextmanager
def kept_producer(properties: Mapping[str, str], transactional_id: str | None = None) -> Iterator[Producer]:
    """Provide a producer with these properties to a `with` block. Its connections may be open already.

    With a transactional id, begin with `init_transactions` or `resume`. The block may leave a transaction open for
    another program (`Producer.prepare`).
    """
    identity = (os.getpid(), *sorted(properties.items()), transactional_id is None)
    producer = _producers.pop(identity, None)
    if producer is None:
        named = {} if transactional_id is None else {"transactional.id": transactional_id}
        producer = Producer({**properties, **named})
    elif transactional_id is not None:
        producer._change_transactional_id(transactional_id)
    try:
        yield producer
    except BaseException:
        producer.close(_CLOSE_SECONDS_MAX)
        raise
    _keep(_producers, identity, producer)


@contextmanager
def kept_decisions(properties: Mapping[str, str], topic: str) -> Iterator[Decisions]:
    """Provide a client of the decisions topic to a `with` block. It may know what it has read in earlier uses."""
    identity = (os.getpid(), *sorted(properties.items()), topic)
    decisions = _decisions.pop(identity, None) or Decisions(properties, topic)
    try:
        yield decisions
    except BaseException:
        decisions.close()
        raise
    # Jobs are many, and a process meets each for a short time.
    decisions.begins = {}
    _keep(_decisions, identity, decisions)


def fencing(error: Exception) -> Exception | None:
    """Find the error that shows that another producer has fenced this one. It is `error` itself, or one of
    its causes. Returns None if there is no such error.
    """
    for each in (error, error.__cause__):
        if isinstance(each, ProducerFencedError):
            return each
        if isinstance(each, KafkaError) and each.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            return each
    return None
