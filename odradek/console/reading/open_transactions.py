"""Finds the states of transactions beyond the last stable offset. SHELL.

Markers that were fetched along decide first. Then the partition's leader is asked, which knows the open ones. At last,
markers further on are looked for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from odradek.client.errors import ClientError
from odradek.console.reading.batch_fetches import FetchedBatches, fetch_batches
from odradek.console.reading.transaction_states import (
    Markers,
    TransactionState,
    markers_in,
    state_by_markers,
)
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.shells.blocking import Client
    from odradek.console.reading.found_records import StateOf

__all__ = ["OpenTransactions"]

LOOK_AHEAD_BYTES_MAX = 16 << 20
_ASK_SECONDS_MAX = 5.0


class OpenTransactions:
    """The open transactions of partitions, for one scan."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def states(self, key: TopicPartition, fetched: FetchedBatches) -> StateOf:
        """Return a function that gives the state of each transactional batch in `fetched`, which has unstable records."""
        try:
            markers: Markers = markers_in(fetched.data)
        except KafkaError:
            markers = {}
        of_partition = _PartitionStates(self._client, key, fetched, markers)
        return of_partition.state_of


@attrs.define
class _PartitionStates:
    """The states of transactions in one fetched range. The leader is asked once, when a marker is missing."""

    _client: Client
    _key: TopicPartition
    _fetched: FetchedBatches
    _markers: Markers
    _open_since: dict[int, int] | None = attrs.field(default=None, init=False)
    _later: Markers | None = attrs.field(default=None, init=False)

    def state_of(self, header: BatchHeader) -> TransactionState:
        """Return the state of a transactional batch. A marker has the state of its own transaction."""
        offset = header.base_offset
        found = state_by_markers(
            self._markers, header.producer_id, offset - 1 if header.is_control else offset
        )
        if found is not None:
            return found
        if self._open_since is None:
            self._open_since = self._ask()
        since = self._open_since.get(header.producer_id)
        if since is not None and since <= offset:
            return TransactionState.OPEN
        if self._later is None:
            self._later = self._look_ahead()
        return state_by_markers(self._later, header.producer_id, offset) or TransactionState.UNKNOWN

    def _ask(self) -> dict[int, int]:
        """Ask the leader since which offset each producer has its open transaction."""
        try:
            found = self._client.admin.describe_producers([self._key], timeout=_ASK_SECONDS_MAX)[self._key]
        except (KafkaError, ClientError):
            return {}
        return {
            each.producer_id: each.current_transaction_start_offset
            for each in found.producers
            if each.current_transaction_start_offset >= 0
        }

    def _look_ahead(self) -> Markers:
        """Collect the markers behind the fetched range, within `LOOK_AHEAD_BYTES_MAX`."""
        found: dict[int, list[tuple[int, bool]]] = {}
        fetched, left = self._fetched, LOOK_AHEAD_BYTES_MAX
        while left > 0:
            position = max((header.next_offset for _, header in iter_batches(fetched.data)), default=-1)
            if position < 0 or position >= fetched.high_watermark:
                break
            operation = fetch_batches(
                self._client.core,
                {self._key: position},
                only_stable=False,
                deadline=time.monotonic() + _ASK_SECONDS_MAX,
            )
            outcome = self._client.run(operation)[self._key]
            if not isinstance(outcome, FetchedBatches):
                break
            fetched = outcome
            left -= len(fetched.data)
            for producer_id, markers in markers_in(fetched.data).items():
                found.setdefault(producer_id, []).extend(markers)
        return found
