"""The silence of the servers: how long no broker serves a request of one kind. Requests by hand, without a client's waits.

A client library adds pauses of its own: it waits before it asks again, and for a dead host until a time limit. Here a
request is sent to the last broker that has served one, and after an error at once to the next. So only the servers' part
is measured.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Self

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.raw_requests import RawClient, record_batch

__all__ = ["Lost", "ManyWriter", "OffsetReader", "Prober", "TransactionReader", "Writer", "longest_gap"]

PRODUCE_VERSION = 9
OFFSET_FETCH_VERSION = 8
DESCRIBE_TRANSACTIONS_VERSION = 0
TIMEOUT_MS = 1_500
"""How long a leader may wait for the other replicas before it answers with an error, in milliseconds."""
ANSWER_SECONDS = 2.0
PAUSE_SECONDS = 0.002
LOOK_SECONDS = 0.01


class Lost(Exception):
    """Raised if something acknowledged is missing after an event."""


def longest_gap(times: list[float], since: float) -> float:
    """Return the longest time between two of these moments, from the last one before `since` on."""
    first = max((number for number, each in enumerate(times) if each <= since), default=0)
    return max((after - before for before, after in pairwise(times[first:])), default=float("inf"))


class Prober(ABC):
    """Sends requests of one kind, one at a time, to whichever broker serves them, in a thread of its own."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        """Take the address (host:port) of each broker, by its id."""
        self._addresses = dict(addresses)
        self._clients: dict[int, RawClient] = {}
        self._order = sorted(addresses)
        self._left_out: set[int] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: Exception | None = None
        self._sent_at = float("-inf")
        """When the last request that was served was sent."""
        self.served_at: list[float] = []
        """When each good answer came, in monotonic seconds."""
        self.errors: dict[str, int] = {}
        """How often each error was answered or met, by its name."""

    @abstractmethod
    def ask(self, client: RawClient) -> int:
        """Send one request, and return the error code of its answer. Raises `OSError`."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for client in self._clients.values():
            client.__exit__()

    def leave_out(self, broker: int) -> None:
        """Stop asking this broker, and waiting for it: its host is dead."""
        self._left_out.add(broker)
        client = self._clients.get(broker)
        if client is not None:
            with suppress(OSError):  # it may have closed the connection already
                client.socket.shutdown(socket.SHUT_RDWR)

    def has_served_since(self, moment: float) -> bool:
        """True if a request was served that was sent after this moment, in monotonic seconds."""
        return self._sent_at > moment

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._probe()
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            self._failure = error

    def _probe(self) -> None:
        """Ask the broker that served the last request. After an error, pause, so that the next call asks the next
        broker.
        """
        while self._order[0] in self._left_out:
            self._order.append(self._order.pop(0))
        sent_at = time.monotonic()
        error = self._try(self._order[0])
        if error is None:
            self.served_at.append(time.monotonic())
            self._sent_at = sent_at
            return
        self.errors[error] = self.errors.get(error, 0) + 1
        self._order.append(self._order.pop(0))
        time.sleep(PAUSE_SECONDS)

    def _try(self, broker: int) -> str | None:
        try:
            client = self._clients.get(broker)
            if client is None:
                client = self._clients[broker] = RawClient(self._addresses[broker], ANSWER_SECONDS)
            error = self.ask(client)
        except OSError as failed:
            lost = self._clients.pop(broker, None)
            if lost is not None:
                lost.__exit__()
            return type(failed).__name__
        return None if not error else ErrorCode(error).name

    def wait_until(self, done: Callable[[], bool], seconds_max: float) -> None:
        """Wait until `done`. Raises `TimeoutError`, and what ended the requests."""
        until = time.monotonic() + seconds_max
        while not done():
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > until:
                raise TimeoutError(f"not done within {seconds_max:g} s; errors: {self.errors}")
            time.sleep(LOOK_SECONDS)


class Writer(Prober):
    """Writes single records with acks=all to partition 0 of a topic."""

    def __init__(self, topic: str, addresses: Mapping[int, str]) -> None:
        super().__init__(addresses)
        self._topic = topic
        self._batch = record_batch(200, 1)

    def ask(self, client: RawClient) -> int:
        data = TopicProduceData(self._topic, bytes(16), [PartitionProduceData(0, self._batch)])
        answer = client.request(ProduceRequest(None, -1, TIMEOUT_MS, [data]), PRODUCE_VERSION)
        code: int = answer.responses[0].partition_responses[0].error_code
        return code


class OffsetReader(Prober):
    """Reads a group's committed offset from its coordinator."""

    def __init__(self, group: str, topic: str, addresses: Mapping[int, str]) -> None:
        super().__init__(addresses)
        topics = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
        self._request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=topics)])

    def ask(self, client: RawClient) -> int:
        group = client.request(self._request, OFFSET_FETCH_VERSION).groups[0]
        if not group.error_code and group.topics[0].partitions[0].committed_offset < 0:
            raise Lost("a committed offset is lost")
        code: int = group.error_code
        return code


class TransactionReader(Prober):
    """Reads the state of a transactional id from its coordinator."""

    def __init__(self, transactional_id: str, addresses: Mapping[int, str]) -> None:
        super().__init__(addresses)
        self._request = DescribeTransactionsRequest([transactional_id])

    def ask(self, client: RawClient) -> int:
        answer = client.request(self._request, DESCRIBE_TRANSACTIONS_VERSION)
        code: int = answer.transaction_states[0].error_code
        if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise Lost("a transactional id is lost")
        return code


class ManyWriter(Prober):
    """Writes a record with acks=all to each of many partitions that one broker leads, until each is written once."""

    def __init__(self, topic: str, partitions: Collection[int], addresses: Mapping[int, str]) -> None:
        super().__init__(addresses)
        self._topic, self._all = topic, frozenset(partitions)
        self._batch = record_batch(100, 1)
        self._left = set(self._all)

    def ask(self, client: RawClient) -> int:
        """Write to all partitions that are left. The request is served when each partition was written once."""
        parts = [PartitionProduceData(each, self._batch) for each in sorted(self._left)]
        data = TopicProduceData(self._topic, bytes(16), parts)
        answer = client.request(ProduceRequest(None, -1, TIMEOUT_MS, [data]), PRODUCE_VERSION)
        rows = answer.responses[0].partition_responses
        self._left.difference_update(each.index for each in rows if not each.error_code)
        if self._left:
            failed: int = next(each.error_code for each in rows if each.error_code)
            return failed
        self._left = set(self._all)
        return 0
