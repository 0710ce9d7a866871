"""The silence of one partition: how long no broker acknowledges a write. Requests by hand, without a client's waits.

A client library adds pauses of its own: it waits before it asks again, and for a dead host until a time limit. Here a
write with acks=all is sent to the last broker that has taken one, and after an error at once to the next. So only the servers'
part is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import attrs

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.raw_requests import RawClient, record_batch

__all__ = ["Acknowledged", "Writer"]

PRODUCE_VERSION = 9
TIMEOUT_MS = 1_500
"""How long a leader may wait for the other replicas before it answers with an error, in milliseconds."""
ANSWER_SECONDS = 2.0
PAUSE_SECONDS = 0.002


@attrs.frozen
class Acknowledged:
    """One acknowledged write: when it was sent, and when its acknowledgement came, in monotonic seconds."""

    sent_at: float
    acknowledged_at: float
    broker: int


class Writer:
    """Writes single records to partition 0 of a topic, through whichever broker takes them."""

    def __init__(self, topic: str, addresses: Mapping[int, str]) -> None:
        """Take the address (host:port) of each broker, by its id."""
        self._topic = topic
        self._addresses = dict(addresses)
        self._clients: dict[int, RawClient] = {}
        self._order = sorted(addresses)
        self._batch = record_batch(200, 1)
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

    def write(self) -> Acknowledged | None:
        """Write one record through the broker that took the last one. After an error, let the next one be tried by the
        next call.
        """
        broker, sent_at = self._order[0], time.monotonic()
        error = self._try(broker)
        if error is None:
            return Acknowledged(sent_at, time.monotonic(), broker)
        self.errors[error] = self.errors.get(error, 0) + 1
        self._order.append(self._order.pop(0))
        return None

    def _try(self, broker: int) -> str | None:
        request = ProduceRequest(
            None,
            -1,
            TIMEOUT_MS,
            [TopicProduceData(self._topic, bytes(16), [PartitionProduceData(0, self._batch)])],
        )
        try:
            client = self._clients.get(broker)
            if client is None:
                client = self._clients[broker] = RawClient(self._addresses[broker], ANSWER_SECONDS)
            answer = client.request(request, PRODUCE_VERSION).responses[0].partition_responses[0]
        except OSError as error:
            lost = self._clients.pop(broker, None)
            if lost is not None:
                lost.__exit__()
            return type(error).__name__
        return None if not answer.error_code else ErrorCode(answer.error_code).name

    def until_acknowledged(self, seconds_max: float) -> Acknowledged:
        """Write until a write is acknowledged. Raises `TimeoutError`."""
        until = time.monotonic() + seconds_max
        while (found := self.write()) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"nobody has taken a write for {seconds_max:g} s: {self.errors}")
            time.sleep(PAUSE_SECONDS)
        return found

    def longest_gap(self, done: Callable[[], bool], seconds_after: float, seconds_max: float = 60.0) -> float:
        """Write all the time until `done`, and for `seconds_after` more. Return the longest time in seconds between two
        acknowledgements.
        """
        last = self.until_acknowledged(seconds_max).acknowledged_at
        began, longest, ends_at = last, 0.0, float("inf")
        while last < ends_at:
            if ends_at == float("inf") and done():
                ends_at = time.monotonic() + seconds_after
            if last - began > seconds_max:
                raise TimeoutError(f"the move has not ended within {seconds_max:g} s")
            now = self.until_acknowledged(seconds_max).acknowledged_at
            longest, last = max(longest, now - last), now
        return longest
