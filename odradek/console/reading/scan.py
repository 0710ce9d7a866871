"""Reads the records of a topic from given offsets on, round by round, and passes on those that a filter lets through.

Theory of operation
-------------------
A round fetches a few partitions at once, at most `FETCH_BYTES_MAX` from each broker. From each partition it takes the
records that pass, then merges them by time. If a round finds more than are wanted, the other ones stay for the
next round. Each partition's position is the offset of the first record that was not passed on.

Everything is a generator. It yields at least every `TICK_SECONDS`, so that its reader can show the progress, or drop
the generator, which ends the work.

Rules
-----
* Up to the last stable offset, only stable records are fetched, since the brokers then list aborted transactions.
  Beyond it, all records are fetched, and markers decide.
* A batch that is damaged, or too large when decompressed, becomes one finding with a reason, and is passed over.
* The seconds in which the reader handles a finding do not count.
* A partition that is followed may lose its leader for a while. It is asked again, and read on where it was left.
* Budgets: bytes and seconds of a scan, bytes that a round holds, bytes that a batch decompresses to.
* All scans of a console share a pace (`pace.py`), so that they leave the brokers to others. A scan rests between rounds.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.errors import is_retriable
from odradek.console.reading.batch_fetches import FetchedBatches, fetch_batches
from odradek.console.reading.found_records import (
    TICK_SECONDS,
    Found,
    PartitionFindings,
    Tick,
    take_findings,
)
from odradek.console.reading.open_transactions import OpenTransactions
from odradek.console.reading.pace import Pace
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.scatter import CallError
    from odradek.client.shells.blocking import Client
    from odradek.console.reading.record_filters import RecordFilter

__all__ = ["Progress", "Scan", "Span"]

PARTITIONS_PER_ROUND = 32
ROUND_RECORDS_MAX = 2000
"""The most findings of a partition in one round."""
ROUND_HELD_BYTES_MAX = 32 << 20
"""The bytes of findings after which no further partition adds to a round."""
STALLS_MAX = 100
"""The most rounds in which a partition may get no batch, although it has some."""
ASK_SECONDS_MAX = 5.0
AGAIN_SECONDS = 3.0
"""The pause after which a followed partition that gave no answer is asked again."""
ASK_AGAIN_SECONDS_MAX = 1.0
"""The time for such a question. The other partitions wait for it."""
IDLE_SECONDS = 0.2
SCAN_BYTES_MAX = 1 << 30
SCAN_SECONDS_MAX = 60.0
TAIL_WAIT_MS = 500
_UNKNOWN = -1


@attrs.define
class Span:
    """A partition that is read: from `position` up to `end`, or for ever if `end` is None."""

    position: int
    end: int | None
    stable: int = _UNKNOWN
    """The last stable offset, as the last answer had it."""
    failure: str | None = None
    """The reason why the partition is not read on."""
    again_at: float | None = None
    """When a failed partition is asked again, in monotonic seconds; None: never."""
    stalls: int = 0
    """The rounds without a batch since the last one with a batch."""

    @property
    def is_done(self) -> bool:
        """True if nothing is left to read."""
        if self.failure is not None and self.again_at is None:
            return True
        return self.end is not None and self.position >= self.end

    @property
    def is_stable(self) -> bool:
        """True if the next records lie below the last stable offset, or may do so."""
        return self.stable == _UNKNOWN or self.position < self.stable

    @property
    def left(self) -> int:
        """The number of offsets up to the end."""
        return 0 if self.end is None else max(0, self.end - self.position)


@attrs.define
class Progress:
    """The progress of a scan."""

    scanned: int = 0
    """The records that were read."""
    scanned_bytes: int = 0
    """The bytes that were fetched."""
    found: int = 0
    """The records that were passed on."""


class Scan:
    """A reading of partitions. `client` belongs to the scan alone while it runs."""

    def __init__(
        self,
        client: Client,
        topic: str,
        spans: Mapping[int, Span],
        fits: RecordFilter | None,
        *,
        with_markers: bool = True,
        bytes_max: int = SCAN_BYTES_MAX,
        seconds_max: float = SCAN_SECONDS_MAX,
        pace: Pace | None = None,
    ) -> None:
        """Make a scan; nothing is fetched yet. With `with_markers`, the markers of transactions are found, too. Without a
        `pace`, the scan has one of its own.
        """
        self._pace = pace or Pace()
        self._client = client
        self._topic = topic
        self.spans = dict(spans)
        self._fits = fits
        self._with_markers = with_markers and fits is None
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._seconds = 0.0
        self._open = OpenTransactions(client)
        self._next = 0
        self.progress = Progress()
        self.reason = ""
        """Why the scan has ended: end, limit, budget, or failed."""

    def run(self, limit: int) -> Iterator[Found | Tick]:
        """Yield findings, at most `limit`, and ticks between them. Raises `KafkaError`, `ClientError`."""
        while True:
            pending = [index for index, span in sorted(self.spans.items()) if not span.is_done]
            if not pending:
                self.reason = "failed" if any(span.failure for span in self.spans.values()) else "end"
                return
            if self.progress.found >= limit:
                self.reason = "limit"
                return
            is_endless = any(self.spans[index].end is None for index in pending)
            if not is_endless and (
                self._seconds > self._seconds_max or self.progress.scanned_bytes >= self._bytes_max
            ):
                self.reason = "budget"
                return
            now = time.monotonic()
            due = [index for index in pending if (self.spans[index].again_at or now) <= now]
            if due:
                most = min(limit - self.progress.found, ROUND_RECORDS_MAX)
                before = self.progress.scanned_bytes
                yield from self._timed(self._round(self._chosen(due), most, is_endless))
                yield from self._timed(_rest(self._pace.rest_seconds(self.progress.scanned_bytes - before)))
            else:
                time.sleep(IDLE_SECONDS)
            yield Tick()

    def _timed(self, items: Iterator[Found | Tick]) -> Iterator[Found | Tick]:
        """Pass items on, and add the time of the work for them. What the reader does with an item does not count."""
        began = time.monotonic()
        for item in items:
            self._seconds += time.monotonic() - began
            yield item
            began = time.monotonic()
        self._seconds += time.monotonic() - began

    def _chosen(self, pending: Sequence[int]) -> list[int]:
        """Choose the partitions of the next round: all in turn. Only the first one gets a batch above the limit of bytes,
        so another one is first in each round.
        """
        self._next %= len(pending)
        chosen = [*pending[self._next :], *pending[: self._next]][:PARTITIONS_PER_ROUND]
        self._next += 1 if len(pending) <= PARTITIONS_PER_ROUND else PARTITIONS_PER_ROUND
        return chosen

    def _round(self, chosen: Sequence[int], limit: int, is_endless: bool) -> Iterator[Found | Tick]:
        findings: list[PartitionFindings] = []
        for index, fetched, only_stable in self._fetched(chosen, is_endless):
            span = self.spans[index]
            self.progress.scanned_bytes += len(fetched.data)
            if sum(each.held_bytes for each in findings) > ROUND_HELD_BYTES_MAX:
                # Its turn comes, since another partition is first in each round.
                continue
            if not fetched.data:
                self._pass_over(span, fetched, only_stable)
                continue
            states = None
            if not only_stable:
                states = self._open.states(TopicPartition(self._topic, index), fetched)
            found = PartitionFindings(self._topic, index, span.position, span.end)
            yield from take_findings(
                found, fetched, states, self._fits, limit, with_markers=self._with_markers
            )
            self.progress.scanned += found.scanned
            span.stable = fetched.last_stable_offset
            if found.next_offset <= span.position:
                _count_stall(span)
                continue
            span.stalls = 0
            findings.append(found)
        yield from self._merged(findings, limit)

    def _merged(self, findings: Sequence[PartitionFindings], limit: int) -> Iterator[Found]:
        """Pass the findings of a round on by time; each partition keeps its order. Move the positions behind them."""
        passed = dict.fromkeys((each.partition for each in findings), 0)
        heap = [(each.found[0].time_ms, place, 0) for place, each in enumerate(findings) if each.found]
        heapq.heapify(heap)
        for each in findings:
            self.spans[each.partition].position = each.first_unpassed(0)
        while heap and limit > 0:
            _, place, number = heapq.heappop(heap)
            of_partition = findings[place]
            limit -= 1
            passed[of_partition.partition] = number + 1
            self.spans[of_partition.partition].position = of_partition.first_unpassed(number + 1)
            self.progress.found += 1
            yield of_partition.found[number]
            if number + 1 < len(of_partition.found):
                heapq.heappush(heap, (of_partition.found[number + 1].time_ms, place, number + 1))

    def _fetched(self, chosen: Sequence[int], is_endless: bool) -> list[tuple[int, FetchedBatches, bool]]:
        """Fetch the next batches of these partitions. Mark those that cannot be read on."""
        answers: list[tuple[int, FetchedBatches, bool]] = []
        for only_stable in (True, False):
            offsets = {
                TopicPartition(self._topic, index): self.spans[index].position
                for index in chosen
                if self.spans[index].is_stable == only_stable
            }
            if not offsets:
                continue
            wait_ms = TAIL_WAIT_MS if is_endless else 0
            has_failed = any(self.spans[key.partition].failure is not None for key in offsets)
            patience = ASK_AGAIN_SECONDS_MAX if has_failed else ASK_SECONDS_MAX
            outcomes = self._client.run(
                fetch_batches(
                    self._client.core,
                    offsets,
                    only_stable=only_stable,
                    wait_ms=wait_ms,
                    deadline=time.monotonic() + patience,
                )
            )
            for key, outcome in outcomes.items():
                if isinstance(outcome, FetchedBatches):
                    self.spans[key.partition].failure = self.spans[key.partition].again_at = None
                    answers.append((key.partition, outcome, only_stable))
                else:
                    self._failed(key, outcome)
        return answers

    def _failed(self, key: TopicPartition, error: CallError) -> None:
        """Go on at the start of the log if records were deleted. A followed partition may be asked again. Any other one
        is read no further.
        """
        span = self.spans[key.partition]
        if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            found = self._client.list_offsets({key: -2})[key].offset
            if found > span.position:
                span.position = found
                return
        span.failure = str(error)
        is_gone = isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        may_return = span.end is None and is_retriable(error) and not is_gone
        span.again_at = time.monotonic() + AGAIN_SECONDS if may_return else None

    def _pass_over(self, span: Span, fetched: FetchedBatches, only_stable: bool) -> None:
        """Handle an answer without bytes: an end of the log, or of its stable part."""
        span.stable = fetched.last_stable_offset
        if (
            only_stable
            and span.position >= fetched.last_stable_offset
            and fetched.high_watermark > span.position
        ):
            span.stable = span.position
        elif span.end is not None and span.position >= fetched.high_watermark:
            # The log ends below the wanted end, since records were lost or cut off.
            span.end = span.position
        elif fetched.high_watermark > span.position:
            _count_stall(span)


def _rest(seconds: float) -> Iterator[Tick]:
    """Pause for so long, in pieces, so that the reader can drop the scan meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, TICK_SECONDS))
        yield Tick()


def _count_stall(span: Span) -> None:
    span.stalls += 1
    if span.stalls > STALLS_MAX:
        span.failure = f"the broker sends no batch at offset {span.position}"
