"""Open transactions, the last stable offset and aborted transactions, compared with a simple reading of all batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin
from odradek.data_plane.log.segments.aborted_index import AbortedTransaction
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.batches.transaction_markers import build_marker, parse_marker
from sim.machine.disk import Keep
from sim.machine.disk_files import PowerCut
from testkit.by_hand import NOW_MS
from tests.log.support import Node, append, append_verified, batch, content, new_disk, retain
from tests.schedule import examples

PRODUCERS = (1, 2, 3)
KEEPS: st.SearchStrategy[Keep] = st.sampled_from(["all", "synced", "random"])


class Reading(NamedTuple):
    """The transactions in a list of batches."""

    open: dict[int, int]
    """The first offset of each open transaction, by producer."""
    ended: list[tuple[int, int]]
    """(first offset, marker's offset) of each transaction that has ended."""
    aborted: list[AbortedTransaction]
    epochs: dict[int, int]
    sequences: dict[int, int]
    """The last sequence number by producer, or -1 if there is none in the current epoch."""

    def stable(self, high_watermark: int, log_start: int) -> int:
        """Return the last stable offset (KIP-98). All transactions below it have committed markers."""
        firsts = [first for first, marker in self.ended if marker >= high_watermark]
        return min(
            high_watermark, max(log_start, min([*firsts, *self.open.values()], default=high_watermark))
        )


def read_naively(batches: list[bytes]) -> Reading:
    """Read the batches from the first to the last."""
    found = Reading({}, [], [], {}, {})
    for data in batches:
        header = parse_header(data)
        producer = header.producer_id
        if producer < 0:
            continue
        if found.epochs.get(producer) != header.producer_epoch:
            found.sequences[producer] = -1
        found.epochs[producer] = header.producer_epoch
        if not header.is_control:
            found.sequences[producer] = header.last_sequence
            found.open.setdefault(producer, header.base_offset)
            continue
        first = found.open.pop(producer, None)
        if first is None:
            continue
        found.ended.append((first, header.base_offset))
        marker = parse_marker(data)
        assert marker is not None
        if marker.is_abort:
            stable = min(found.open.values(), default=header.base_offset + 1)
            found.aborted.append(AbortedTransaction(producer, first, header.base_offset, stable))
    return found


class TransactionMachine(RuleBasedStateMachine):
    """A model of the log: the list of all batches.

    Truncations are made durable, so that no crash undoes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []
        self.reading = read_naively([])
        self.is_exact = True
        """False after a start or a truncation, which may forget uncommitted markers."""
        self.deleted = 0

    @initialize(
        seed=st.integers(0, 1 << 16),
        segment_bytes=st.sampled_from([400, 900, 1 << 20]),
        follows=st.booleans(),
    )
    def begin(self, seed: int, segment_bytes: int, follows: bool) -> None:
        self.follows = follows
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=150, file_delete_delay_ms=1000, retention_ms=-1
        )
        self.node = Node(config, new_disk(seed))
        self.log = self.node.log()
        self.make_durable()

    def make_durable(self) -> None:
        self.log.flush()
        self.node.log_dir.checkpoints.write_recovery_points()

    def take(self, data: bytearray, crash: int | None, keep: Keep) -> None:
        """Append as a leader or a follower does. The power may be cut meanwhile."""
        base_offset = self.log.log_end_offset
        data[0:8] = base_offset.to_bytes(8, "big")
        data[12:16] = bytes(4)
        plain = bytearray(data)
        plain[0:8] = bytes(8)

        def act() -> None:
            if self.follows:
                append(self.log, data, origin=Origin.REPLICA)
            elif parse_header(data).is_control:
                append(self.log, plain, origin=Origin.COORDINATOR)
            elif parse_header(data).is_transactional:
                append_verified(self.log, plain)
            else:
                append(self.log, plain)

        if self.survives(act, crash):
            self.batches.append(bytes(data))
            self.reading = read_naively(self.batches)
        else:
            self.restart(keep, bytes(data))

    @rule(
        producer=st.sampled_from(PRODUCERS),
        count=st.integers(1, 3),
        crash=st.none() | st.integers(1, 6),
        keep=KEEPS,
    )
    def write_in_transaction(self, producer: int, count: int, crash: int | None, keep: Keep) -> None:
        epoch = self.reading.epochs.get(producer, 0)
        sequence = self.reading.sequences.get(producer, -1) + 1
        data = batch(
            count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
        )
        self.take(data, crash, keep)

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        self.take(batch(count), None, "all")

    @rule(
        producer=st.sampled_from(PRODUCERS),
        commits=st.booleans(),
        bumps=st.booleans(),
        crash=st.none() | st.integers(1, 6),
        keep=KEEPS,
    )
    def end(self, producer: int, commits: bool, bumps: bool, crash: int | None, keep: Keep) -> None:
        epoch = self.reading.epochs.get(producer, 0) + bumps
        self.take(build_marker(producer, epoch, 0, is_commit=commits, timestamp_ms=NOW_MS), crash, keep)

    @rule(crash=st.none() | st.integers(1, 8), keep=KEEPS)
    def roll(self, crash: int | None, keep: Keep) -> None:
        if not self.survives(lambda: self.log.roll(NOW_MS), crash):
            self.restart(keep)

    @rule(crash=st.none() | st.integers(1, 10), keep=KEEPS)
    def flush(self, crash: int | None, keep: Keep) -> None:
        if not self.survives(self.make_durable, crash):
            self.restart(keep)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        high, end = self.log.high_watermark, self.log.log_end_offset
        self.log.advance_high_watermark(high + round(share * (end - high)))

    @precondition(lambda self: self.log.log_end_offset > self.log.high_watermark)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.high_watermark, self.log.log_end_offset - 1))
        self.log.truncate_to(offset)
        self.keep_below(self.log.log_end_offset)
        self.is_exact = False
        self.make_durable()
        assert self.log.log_end_offset <= offset

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.high_watermark))
        self.log.set_log_start_offset(offset)
        retain(self.log, NOW_MS)

    @rule(milliseconds=st.sampled_from([0, 70_000]))
    def background(self, milliseconds: int) -> None:
        self.node.look(milliseconds)

    @rule(keep=KEEPS)
    def crash(self, keep: Keep) -> None:
        self.restart(keep)

    @rule()
    def stop_and_start(self) -> None:
        self.node.log_dir.close_clean(7)
        self.node.disk.crash("synced")
        self.reopen()

    def survives(self, act: Callable[[], object], crash: int | None) -> bool:
        """Run `act`, with a power cut at its disk operation number `crash`. Return False if the power was cut."""
        if crash is not None:
            self.node.disk.crash_at(self.node.disk.operation_count + crash)
        try:
            act()
        except PowerCut:
            return False
        finally:
            self.node.disk.crash_at(0)
        return True

    def restart(self, keep: Keep, maybe: bytes | None = None) -> None:
        if maybe is not None:
            self.batches.append(maybe)
        self.node.disk.crash(keep)
        self.reopen()

    def reopen(self) -> None:
        self.node.start()
        self.log = self.node.log()
        self.is_exact = False
        if self.node.events("log.start_is_behind_end"):
            # The checkpoint of the log start is newer than the log. The log is now empty, and its state unknown.
            self.batches = []
            self.node.captured.entries.clear()
        self.keep_below(self.log.log_end_offset)

    def keep_below(self, offset: int) -> None:
        self.batches = [data for data in self.batches if parse_header(data).last_offset < offset]
        self.reading = read_naively(self.batches)

    @invariant()
    def all_agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log, reading = self.log, self.reading
        start = log.segments[0].base_offset
        assert content(log) == b"".join(
            data for data in self.batches if parse_header(data).last_offset >= log.log_start_offset
        )
        if log.high_watermark == log.log_end_offset:
            self.is_exact = True
        exact = reading.stable(log.high_watermark, log.log_start_offset)
        loose = min(
            log.high_watermark, max(log.log_start_offset, min(reading.open.values(), default=1 << 62))
        )
        assert exact <= log.last_stable_offset <= loose
        if self.is_exact:
            assert log.last_stable_offset == exact
        assert log.aborted_transactions(start, log.log_end_offset) == [
            each for each in reading.aborted if each.last_offset >= start
        ]
        told = {
            each.producer_id: each.current_txn_start_offset
            for each in log.load_producers().active_producers()
        }
        assert {producer: first for producer, first in told.items() if first >= 0} == reading.open
        assert list(log.load_producers().ongoing) == sorted(reading.open.values())
        verifications = log.producers.verifications
        assert verifications is None or verifications.verified.keys() <= reading.open.keys()

    @precondition(lambda self: self.reading.aborted)
    @rule(data=st.data())
    def find_aborted(self, data: st.DataObject) -> None:
        """Check that a committed reader gets each aborted transaction that has offsets in its range, and no other."""
        offsets = st.integers(self.log.log_start_offset, self.log.log_end_offset)
        offset, end = sorted((data.draw(offsets), data.draw(offsets)))
        assert self.log.aborted_transactions(offset, end) == [
            each for each in self.reading.aborted if each.last_offset >= offset and each.first_offset < end
        ]


def test_open_and_aborted_transactions_are_what_the_batches_say() -> None:
    """Last stable offset, open transactions and `.txnindex` follow from the batches (KIP-98).

    Crashes and truncations do not change that.
    """
    run = TransactionMachine.TestCase
    run.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
    run("runTest").runTest()
