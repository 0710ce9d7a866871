"""The silence of one partition: how long no broker acknowledges a write. Requests by hand, without a client's waits.

A client library adds pauses of its own: it waits before it asks again, and for a dead host until a time limit. Here a
write with acks=all is sent to the last broker that has taken one, and after an error at once to the next. So only the
servers' part is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.raw_requests import RawClient, record_batch

__all__ = ["Writer", "longest_gap"]

PRODUCE_VERSION = 9
TIMEOUT_MS = 1_500
"""How long a leader may wait for the other replicas before it answers with an error, in milliseconds."""
ANSWER_SECONDS = 2.0
PAUSE_SECONDS = 0.002


def longest_gap(times: list[float], since: float) -> float:
    """Return the longest time between two of these moments, from the last one before `since` on."""
    first = max((number for number, each in enumerate(times) if each <= since), default=0)
    return max((after - before for before, after in pairwise(times[first:])), default=float("inf"))


class Writer:
    """Writes single records to partition 0 of a topic, through whichever broker takes them."""

    def __init__(self, topic: str, addresses: Mapping[int, str]) -> None:
        """Take the address (host:port) of each broker, by its id."""
        self._topic = topic
        self._addresses = dict(addresses)
        self._clients: dict[int, RawClient] = {}
        self._order = sorted(addresses)
        self._batch = record_batch(200, 1)
        self.acknowledged_at: list[float] = []
        """When each acknowledgement came, in monotonic seconds."""
        self.errors: dict[str, int] = {}
        """How often each error was answered or met, by its name."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.__exit__()

    def leave_out(self, broker: int) -> None:
        """Write no longer to this broker: its host is dead, so that a request would only wait."""
        self._order.remove(broker)

    def write(self) -> bool:
        """Write one record through the broker that took the last one. After an error, pause, so that the next call
        tries the next broker. Return True if the record was acknowledged.
        """
        error = self._try(self._order[0])
        if error is None:
            self.acknowledged_at.append(time.monotonic())
            return True
        self.errors[error] = self.errors.get(error, 0) + 1
        self._order.append(self._order.pop(0))
        time.sleep(PAUSE_SECONDS)
        return False

    def _try(self, broker: int) -> str | None:
        data = TopicProduceData(self._topic, bytes(16), [PartitionProduceData(0, self._batch)])
        try:
            client = self._clients.get(broker)
            if client is None:
                client = self._clients[broker] = RawClient(self._addresses[broker], ANSWER_SECONDS)
            request = ProduceRequest(None, -1, TIMEOUT_MS, [data])
            answer = client.request(request, PRODUCE_VERSION).responses[0].partition_responses[0]
        except OSError as error:
            lost = self._clients.pop(broker, None)
            if lost is not None:
                lost.__exit__()
            return type(error).__name__
        return None if not answer.error_code else ErrorCode(answer.error_code).name

    def write_until(self, done: Callable[[], bool], seconds_max: float) -> None:
        """Write all the time until `done`. Raises `TimeoutError`."""
        until = time.monotonic() + seconds_max
        while not done():
            self.write()
            if time.monotonic() > until:
                raise TimeoutError(f"not done within {seconds_max:g} s; errors of writes: {self.errors}")
