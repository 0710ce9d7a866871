"""Reads the cluster's events from the controller that leads the quorum, even if the leader changes. SHELL.

The reader remembers the offset up to which it has read the metadata log. When the leader changes, the reader
finds the new leader and continues at this offset. If the new leader's log begins at a later offset, a
snapshot replaces the missing part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from odradek.client.errors import ClientError, is_retriable
from odradek.operations.cluster_events import Event, Narrator
from odradek.operations.metadata_log import read_metadata, read_metadata_snapshot
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.admin.admin_quorum import QuorumDescription
    from odradek.client.shells.blocking import Client

__all__ = ["EventReader"]

_RETRY_SECONDS = 0.3
_ANSWER_SECONDS_MAX = 2.0
"""The seconds that a leader may be silent after the end of its long poll. Then the reader looks for another
leader.
"""


class EventReader:
    """Reads the metadata log from its oldest offset on, and turns it into events.

    `client` is connected to any broker. `connect` is a function that opens a connection to the leader of the
    described quorum.
    """

    def __init__(
        self,
        client: Client,
        connect: Callable[[QuorumDescription], AbstractContextManager[Client]],
        *,
        timeout_seconds: float,
    ) -> None:
        self._client = client
        self._connect = connect
        self._timeout_seconds = timeout_seconds
        self._offset = 0
        self.begins_at = 0
        """The end offset of the last snapshot that replaced a part of the log; 0 if the log was complete."""
        self.topics: set[str] = set()
        """The names of all topics that occur in the log."""
        self.controllers: dict[int, int] = {}
        """The controller that led in each epoch of the log."""
        self._narrator = Narrator(self.topics, self.controllers)

    def read_to(self, end: int) -> Iterator[Event]:
        """Yield all events before the offset `end`. Raises the errors of `read`."""
        for events in self.read(0):
            yield from events
            if self._offset >= end:
                return

    def read(self, wait_ms: int) -> Iterator[list[Event]]:
        """Yield lists of the next events, for ever; an empty list if no event came within `wait_ms`.

        Raises:
            KafkaError, ClientError: no leader has answered for `timeout_seconds`, or the leader refuses permanently.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                quorum = self._client.admin.describe_quorum()
                with self._connect(quorum) as controller:
                    while True:
                        events = self._step(controller, quorum.leader_epoch, wait_ms)
                        deadline = time.monotonic() + self._timeout_seconds
                        yield events
            except (KafkaError, ClientError) as error:
                if not is_retriable(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _step(self, controller: Client, epoch: int, wait_ms: int) -> list[Event]:
        patience = wait_ms / 1000 + _ANSWER_SECONDS_MAX
        read = controller.run(read_metadata(controller.core, self._offset, wait_ms=wait_ms, timeout=patience))
        if read.snapshot is not None:
            self._narrator = Narrator(self.topics, self.controllers)
            for batch in controller.run(read_metadata_snapshot(controller.core, read.snapshot, epoch)):
                self._narrator.load(batch.records)
            self._offset = self.begins_at = read.snapshot.end_offset
            return []
        events = []
        for batch in read.batches:
            events += self._narrator.narrate(batch.offset, batch.epoch, batch.time_ms, batch.records)
            self._offset = batch.next_offset
        return events
