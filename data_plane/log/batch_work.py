"""Divides the costly checks of clients' batches between the event loop and worker threads. The loop has a
limit per turn; workers make the checks beyond it.

Theory of operation
===================

Two steps of an append cost more than writing the bytes. One is to decompress the records
(`odradek.wire.record_batch.Inflation`). The other is to parse each record, if a rule of the topic needs it. A
request of a few kilobytes can decompress to 128 MiB, or contain a quarter of a million records. The caller of
an append passes a `BatchWork`, which decides where this work is done:

- `AT_ONCE`: the calling thread does the work. Tests and programs without an event loop use it.
- `LoopWork`: the event loop does the work, up to a ration for each turn. Work beyond the ration raises
  `OffLoop` before anything has changed.
- `HandedOff`: a worker has done the work for a single batch beforehand. The append uses the worker's results,
  and makes all other checks again.

`RequestBudget` bounds the work of workers for one request, even if the request names a partition many times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.record_rules import RECORDS_PARSED_MAX, check_records
from odradek.wire.batches.batch_errors import DecompressionBomb
from odradek.wire.batches.batch_header import HEADER_SIZE, BatchHeader, parse_header, set_max_timestamp
from odradek.wire.batches.compression import CompressionType, Inflated, decompressed_size
from odradek.wire.batches.recompression import codec_of
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import parse_produced
from odradek.wire.schema.versions import PRODUCE_ZSTD

RATION = 2 << 20
"""The limit of the event loop's work for batches in one turn. The unit is one decompressed byte of the
cheapest codecs, lz4 and zstd. The whole ration takes 1 to 3 ms (measured).

The loop begins no further batch once the ration is used up. So a turn costs at most twice the ration.
"""
CODEC_COSTS: dict[int, int] = {
    CompressionType.GZIP: 4,
    CompressionType.SNAPPY: 2,
    CompressionType.LZ4: 1,
    CompressionType.ZSTD: 1,
}
"""For each codec, the number of bytes that one decompressed byte takes from the ration."""
RATIO_MAX = 16.0
"""The upper limit of a measured compression ratio. When a codec's estimate is updated, a higher ratio counts as
this limit. Otherwise one client's decompression bombs would raise the estimated sizes of other clients'
batches.
"""
RECORD_COST = 1024
"""The number of bytes that one parsed record takes from the ration. Parsing it takes about 1.2 us."""
REQUEST_BYTES_MIN = 128 << 20
REQUEST_RATIO = 16
"""The allowed compression ratio of a request. Its batches may decompress to `REQUEST_BYTES_MIN` plus this many
times their size.
"""
RECORD_BYTES = 16
"""A client's request has a budget of records that workers may parse. The budget is `RECORDS_PARSED_MAX`, the
most records of one batch, plus one record for each `RECORD_BYTES` bytes of the request.
"""
SMALL_BYTES_MAX = 16 << 20
"""The largest decompressed size, in bytes, of a batch that counts as small."""


class OffLoop(Exception):
    """Raised if this work must not be done on the event loop now. Nothing has changed; a worker can do the
    work.
    """


class LargerThanThought(Exception):
    """Raised if records decompress to more bytes than the caller has allowed."""


class BatchWork(Protocol):
    """A port that makes the costly checks of a batch, or refuses to make them on the event loop."""

    def size_of(self, compression_type: int, data: memoryview, size_max: int) -> int:
        """Return the records' size after decompression, or raise `OffLoop`. Arguments and errors are those of
        `odradek.wire.batches.compression.decompressed_size`.
        """

    def check_records(
        self, batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, name: str
    ) -> int:
        """Check each record, and return the newest timestamp; or raise `OffLoop`. Arguments and errors are
        those of `odradek.data_plane.log.record_rules.check_records`.
        """


class _AtOnce:
    """A `BatchWork` that does all work in the calling thread."""

    def size_of(self, compression_type: int, data: memoryview, size_max: int) -> int:
        return decompressed_size(compression_type, data, size_max)

    def check_records(
        self, batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, name: str
    ) -> int:
        return check_records(batch, header, config, now_ms, name)


AT_ONCE: BatchWork = _AtOnce()


class LoopWork:
    """A `BatchWork` that does the work on the event loop, within the ration of a turn. `at_end_of_turn`
    receives the function that restores the ration.

    `LoopWork` first estimates the decompressed size by the codec's recent compression ratio. So it seldom
    begins a decompression that the ration does not allow to end.
    """

    __slots__ = ("_at_end_of_turn", "_inflated", "_left", "_ratios", "_size")

    def __init__(self, at_end_of_turn: Callable[[Callable[[], None]], None]) -> None:
        self._at_end_of_turn = at_end_of_turn
        self._inflated = Inflated()
        self._left = RATION
        self._size = 0
        """The decompressed size of the last batch. An append first asks for this size, and then asks for the
        check of its records.
        """
        self._ratios: dict[int, float] = dict.fromkeys(CODEC_COSTS, 1.0)

    @property
    def bytes_inflated(self) -> int:
        """The number of bytes that the loop has decompressed, including those of refused batches."""
        return self._inflated.bytes_made

    def size_of(self, compression_type: int, data: memoryview, size_max: int) -> int:
        cost = CODEC_COSTS.get(compression_type, 1)
        room = RATION // cost - len(data)
        if self._left <= 0 or room < len(data) * self._ratios.get(compression_type, 1.0):
            raise OffLoop
        allowed = min(room, size_max)
        before = self._inflated.bytes_made
        try:
            size = self._size = decompressed_size(compression_type, data, allowed, self._inflated)
        except DecompressionBomb:
            self.note_size(compression_type, len(data), size_max)
            if allowed == size_max:
                raise
            raise OffLoop from None
        finally:
            self._take((len(data) + self._inflated.bytes_made - before) * cost)
        self.note_size(compression_type, len(data), size)
        return size

    def note_size(self, compression_type: int, compressed: int, size: int) -> None:
        """Update the estimate of a codec's ratio with the compressed and the decompressed size of a batch."""
        ratio = self._ratios.get(compression_type, 1.0)
        self._ratios[compression_type] = ratio + (min(size / (compressed + 1), RATIO_MAX) - ratio) / 4

    def check_records(
        self, batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, name: str
    ) -> int:
        cost = header.record_count * RECORD_COST
        if header.compression_type:
            cost += self._size * CODEC_COSTS.get(header.compression_type, 1)
        if cost > RATION or self._left <= 0:
            raise OffLoop
        if header.compression_type:
            self._inflated.bytes_made += self._size
        self._take(cost)
        return check_records(batch, header, config, now_ms, name)

    def _take(self, cost: int) -> None:
        if self._left == RATION:
            self._at_end_of_turn(self._refill)
        self._left -= cost

    def _refill(self) -> None:
        self._left = RATION


class RequestBudget:
    """Limits the work of worker threads for one request, whose batches have `size` bytes.

    `inflated` counts the decompressed bytes of the whole node.
    """

    __slots__ = (
        "_of_node",
        "bytes_inflated",
        "bytes_left",
        "bytes_max",
        "bytes_usual",
        "records_left",
        "records_max",
    )

    def __init__(self, size: int, inflated: Inflated) -> None:
        self.bytes_inflated = 0
        self._of_node = inflated
        self.bytes_max = self.bytes_left = REQUEST_BYTES_MIN + REQUEST_RATIO * size
        self.bytes_usual = SMALL_BYTES_MAX + REQUEST_RATIO * size
        self.records_max = self.records_left = RECORDS_PARSED_MAX + size // RECORD_BYTES

    @property
    def is_unusual(self) -> bool:
        """True if the request's batches have decompressed to far more bytes than batches usually do."""
        return self.bytes_inflated > self.bytes_usual

    def inflate(self, compression_type: int, data: memoryview, size_max: int, at_once_max: int) -> int:
        """Return the size after decompression like `decompressed_size`, but within the budget.

        Raises:
            LargerThanThought: the data decompresses to more than `at_once_max` bytes, and the budget allows
                more.
            KafkaError: MESSAGE_TOO_LARGE beyond the budget; also the errors of `decompressed_size`.
        """
        allowed = min(size_max, self.bytes_left)
        counted = Inflated()
        # An attempt that raises `LargerThanThought` takes nothing from the budget. The caller tries again with
        # more room, and then the bytes are taken from the budget.
        is_charged = True
        try:
            return decompressed_size(compression_type, data, min(allowed, at_once_max), counted)
        except DecompressionBomb as error:
            if at_once_max < allowed:
                is_charged = False
                raise LargerThanThought from error
            if allowed < size_max:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"the batches of this request decompress to more than the allowed {self.bytes_max} bytes",
                ) from error
            raise
        finally:
            if is_charged:
                self.bytes_left = max(0, self.bytes_left - counted.bytes_made)
            self.bytes_inflated += counted.bytes_made
            self._of_node.bytes_made += counted.bytes_made

    def take_records(self, count: int) -> None:
        """Subtract `count` records, which are to be checked, from the budget. Raises `KafkaError`
        MESSAGE_TOO_LARGE beyond the budget.
        """
        if count > self.records_left:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the broker checks at most {self.records_max} records of one request: send fewer batches in it",
            )
        self.records_left -= count


def _kept(error: KafkaError) -> KafkaError:
    """Remove the traceback from an error that will be stored. The frames of a traceback refer to decompressed
    chunks, and to the object that stores the error. So both would stay in memory with the error.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class HandedOff:
    """A `BatchWork` for one batch. After an attempt to append the batch, a worker makes the costly checks
    that the attempt needs. Then the append is tried again. Only one thread at a time uses this object.
    """

    __slots__ = ("_budget", "_check", "_newest_ms", "_refusal", "config", "loop_work", "records", "size")

    def __init__(
        self, records: memoryview, config: LogConfig, budget: RequestBudget, loop_work: LoopWork
    ) -> None:
        """Take `records`, the request's own copy of the batch, and the present `config` of the topic."""
        self.records = records
        self.config = config
        self.loop_work = loop_work
        self.size: int | KafkaError | None = None
        """The decompressed size of the records in bytes, or the error that refused them; None while it is
        unknown.
        """
        self._budget = budget
        self._check: Callable[[], int] | None = None
        self._newest_ms: int | None = None
        """The newest timestamp that the check of the records has found. None before the check, or if the check
        refused the records.
        """
        self._refusal: KafkaError | None = None

    # -- on the loop

    def size_of(self, compression_type: int, data: memoryview, size_max: int) -> int:
        size = self.size
        if size is None:
            raise OffLoop
        if isinstance(size, KafkaError):
            raise size
        if size > size_max:
            raise DecompressionBomb(
                f"the record batch decompresses to more than the allowed {size_max} bytes"
            )
        return size

    def check_records(
        self, batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, name: str
    ) -> int:
        if self._refusal is not None:
            raise self._refusal
        if self._newest_ms is not None:
            return self._newest_ms
        try:
            if header.compression_type:
                raise OffLoop
            return self.loop_work.check_records(batch, header, config, now_ms, name)
        except OffLoop:
            self._check = partial(check_records, batch, header, config, now_ms, name)
            raise

    def note_size(self) -> None:
        """Report the batch's sizes before and after decompression to `LoopWork`, which estimates the sizes of
        later batches by them.
        """
        if isinstance(self.size, int):
            self.loop_work.note_size(codec_of(self.records), len(self.records), self.size)

    @property
    def is_compressed(self) -> bool:
        return codec_of(self.records) > 0

    @property
    def is_small(self) -> bool:
        """True if the decompressed batch needs little memory, or its decompressed size is still unknown."""
        return not isinstance(self.size, int) or self.size <= SMALL_BYTES_MAX

    @property
    def wants_check(self) -> bool:
        """True if an append has requested a check of each record."""
        return self._check is not None

    # -- in a worker

    @property
    def may_be_appended(self) -> bool:
        """True if a worker should decompress the batch before the first append. Such a batch is compressed,
        its decompressed size is unknown, and it is not larger than the topic allows.
        """
        is_asked = self.is_compressed and self.size is None
        return is_asked and len(self.records) <= self.config.max_message_bytes

    def inflate(self, at_once_max: int) -> None:
        """Compute and store the decompressed size. If the records are refused, store that error instead. The
        append may still refuse the batch for another reason.

        Raises `LargerThanThought`.
        """
        try:
            header = parse_produced(self.records, PRODUCE_ZSTD)
            self.size = self._budget.inflate(
                header.compression_type,
                self.records[HEADER_SIZE : header.size],
                self.config.decompressed_bytes_max,
                at_once_max,
            )
        except KafkaError as error:
            self.size = _kept(error)

    def check(self) -> None:
        """Do the check of each record that an append has requested, and store the result for the next append."""
        check, self._check = self._check, None
        assert check is not None, "no append has requested a check of these records"
        try:
            count = parse_header(self.records).record_count
            self._budget.take_records(min(count, RECORDS_PARSED_MAX))
            self._newest_ms = check()
        except KafkaError as error:
            self._refusal = _kept(error)


def check_rare(
    batch: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    guard: object | None,
    work: BatchWork,
    log: object,
    *,
    is_unsure: bool,
) -> BatchHeader:
    """Make the checks that most batches do not need. Checks that a transactional batch has a guard. Checks
    each record if a rule needs that, or if `is_unsure` is true.

    The newest timestamp in the header becomes that of the checked records, as in Kafka. Returns the header that
    the batch has afterwards. `is_unsure` is true if the header's newest timestamp cannot be right, or is out of
    bounds. Error texts contain the name of `log`. Raises `KafkaError`, and the errors of `work`.
    """
    if header.is_transactional and guard is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the batch is transactional, but its request names no transactional id",
        )
    newest = header.max_timestamp
    if config.checks_records or is_unsure:
        newest = work.check_records(batch, header, config, now_ms, str(log))
    if not config.uses_append_time and (newest != header.max_timestamp or header.timestamp_type):
        # Set the type to CreateTime (0). With LogAppendTime, consumers would take the newest timestamp for
        # the timestamp of every record.
        set_max_timestamp(batch, 0, newest, 0)
        return parse_header(batch)
    return header
