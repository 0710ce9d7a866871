"""A partition log compared with a list. The disk loses unsynced data, and crashes come at any operation."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.wire.batches.batch_header import iter_batches
from sim.machine.disk import Keep
from sim.machine.disk_files import PowerCut
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, Node, append, batch, content, new_disk, retain
from tests.schedule import examples


@attrs.frozen
class Entry:
    """A batch that the log should contain."""

    base_offset: int
    last_offset: int
    data: bytes
    epoch: int
    timestamps: tuple[int, ...]
    producer: int
    last_sequence: int


class LogMachine(RuleBasedStateMachine):
    """A model of a log: the list of all batches, the offset below which they are durable, and the log start offset.

    Producers remember batches that were deleted, so the model keeps deleted batches, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model: list[Entry] = []
        self.past: list[list[Entry]] = []
        """The states of the log before truncations that a power loss may undo."""
        self.durable = 0
        self.log_start = 0
        self.deleted = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.clock_ms = NOW_MS

    @initialize(seed=st.integers(0, 1 << 16), segment_bytes=st.sampled_from([700, 1500, 1 << 20]))
    def begin(self, seed: int, segment_bytes: int) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=150, file_delete_delay_ms=1000, retention_ms=-1
        )
        self.node = Node(config, new_disk(seed))
        self.log = self.node.log()
        self.log.flush()
        self.node.log_dir.checkpoints.write_recovery_points()

    # --- operations of the log

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 120),
        jump=st.integers(-50, 50),
        producer=st.integers(0, 2),
        crash=st.none() | st.integers(1, 6),
        keep=st.sampled_from(["all", "synced", "random"]),
    )
    def append(
        self,
        count: int,
        size: int,
        jump: int,
        producer: int,
        crash: int | None,
        keep: Keep,
    ) -> None:
        self.clock_ms += jump
        sequence = (self.sequences.get(producer, -1) + 1) if producer else -1
        ids = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence} if producer else {}
        data = batch(count, value=b"x" * size, timestamp=self.clock_ms, **ids)
        base = self.log.log_end_offset
        last_sequence = sequence + count - 1 if producer else -1

        def act() -> None:
            result = append(self.log, data, epoch=self.epoch, now_ms=self.clock_ms)
            assert (result.base_offset, result.last_offset) == (base, base + count - 1)

        timestamps = tuple(self.clock_ms + at for at in range(count))
        entry = Entry(base, base + count - 1, b"", self.epoch, timestamps, producer, last_sequence)
        if self.survives(act, crash):
            self.note(entry, data)
        else:
            # An append that a crash has interrupted may be there or not.
            self.restart(keep, maybe=(entry, data))

    def note(self, entry: Entry, data: bytearray) -> None:
        self.model.append(attrs.evolve(entry, data=bytes(data)))
        if entry.producer:
            self.sequences[entry.producer] = entry.last_sequence

    @rule(crash=st.none() | st.integers(1, 10), keep=st.sampled_from(["all", "synced", "random"]))
    def flush(self, crash: int | None, keep: Keep) -> None:
        def act() -> None:
            self.log.flush()
            self.note_durable()
            self.node.log_dir.checkpoints.write_recovery_points()

        if self.survives(act, crash):
            assert self.log.recovery_point == self.log.log_end_offset
        else:
            self.restart(keep)

    @rule(crash=st.none() | st.integers(1, 8), keep=st.sampled_from(["all", "synced", "random"]))
    def roll(self, crash: int | None, keep: Keep) -> None:
        if not self.survives(lambda: self.log.roll(self.clock_ms), crash):
            self.restart(keep)

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(),
        crash=st.none() | st.integers(1, 20),
        keep=st.sampled_from(["all", "synced", "random"]),
    )
    def truncate(self, data: st.DataObject, crash: int | None, keep: Keep) -> None:
        at = data.draw(st.integers(0, len(self.model) - 1))
        entry = self.model[at]
        offset = data.draw(st.integers(entry.base_offset, entry.last_offset))
        if entry.base_offset < self.log_start:
            # Deleted records were committed, so they are never truncated.
            return
        survived = self.survives(lambda: self.log.truncate_to(offset), crash)
        self.durable = min(self.durable, entry.base_offset)
        self.past.append(list(self.model))
        self.epoch += 1
        if survived:
            del self.model[at:]
            self.recount()
            assert self.log.log_end_offset == entry.base_offset
        else:
            self.restart("random" if keep == "all" else keep)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.log.log_end_offset))
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.log.set_log_start_offset(offset)
        self.log_start = offset
        self.deleted = max(self.deleted, offset)
        retain(self.log, self.clock_ms)

    @rule(milliseconds=st.sampled_from([0, 1000, 70_000]))
    def background(self, milliseconds: int) -> None:
        self.node.look(milliseconds)
        self.note_durable()

    def note_durable(self) -> None:
        self.durable = max(self.durable, self.log.recovery_point)
        if not self.log.segment_list.entry_is_dirty and self.log.recovery_point == self.log.log_end_offset:
            self.past = []

    @rule(keep=st.sampled_from(["all", "synced", "random"]))
    def crash(self, keep: Keep) -> None:
        self.restart(keep)

    @rule()
    def stop_and_start(self) -> None:
        self.node.log_dir.close_clean(7)
        self.node.disk.crash("synced")
        self.node.start()
        self.log = self.node.log()
        assert self.node.log_dir.clean_shutdown_broker_epoch == 7
        self.durable = self.end()
        self.past = []
        assert self.log.log_start_offset == self.log_start
        self.check_all()

    # --- crashes

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

    def restart(self, keep: Keep, maybe: tuple[Entry, bytearray] | None = None) -> None:
        """Crash and recover. The log is a prefix of its former state, with everything durable.

        A crash may also undo a truncation that was not flushed. The log is then a prefix of its state before the
        truncation.
        """
        end, start = self.end(), self.log_start
        emptied_before = len(self.node.events("log.start_is_behind_end"))
        self.node.disk.crash(keep)
        self.node.start()
        # The checkpoint of the log start is newer than the log, whose records were deleted anyway. The log begins anew
        # there.
        emptied = len(self.node.events("log.start_is_behind_end")) > emptied_before
        self.log = self.node.log()
        found = self.log.log_end_offset
        complete = list(self.model)
        if maybe is not None:
            complete.append(attrs.evolve(maybe[0], data=bytes(maybe[1])))
        if keep == "all":
            assert found >= end
        assert found >= self.durable
        # The log start may have fallen back to its last checkpoint, or to the end of the log.
        assert self.log.log_start_offset <= max(start, found)
        self.log_start = self.log.log_start_offset
        stored = content(self.log)
        for history in (complete, *([] if keep == "all" else self.past)):
            kept = [entry for entry in history if entry.last_offset < found]
            visible = [entry for entry in kept if entry.last_offset >= self.log_start]
            if stored == b"".join(entry.data for entry in visible):
                self.model = [] if emptied else kept
                break
        else:
            raise AssertionError(f"the log up to {found} is no prefix of an earlier state")
        if keep != "all":
            self.past = []
        self.durable = min(self.durable, found)
        self.recount()
        self.check_all()

    def recount(self) -> None:
        self.sequences = {entry.producer: entry.last_sequence for entry in self.model if entry.producer}

    def end(self) -> int:
        return self.model[-1].last_offset + 1 if self.model else self.log_start

    # --- invariants

    def check_all(self) -> None:
        """Check contents, lookups in indexes, and producers, and run the offline verification."""
        expected = [entry for entry in self.model if entry.last_offset >= self.log.log_start_offset]
        assert content(self.log) == b"".join(entry.data for entry in expected)
        state = self.log.load_producers()
        for producer, sequence in self.sequences.items():
            assert state.entries[producer].last_sequence == sequence
        for entry in expected:
            epoch = self.log.epochs.epoch_for_offset(max(entry.last_offset, self.log.log_start_offset))
            # A crash may bring back deleted records whose epoch was removed durably.
            assert epoch == entry.epoch or (epoch is None and entry.last_offset < self.deleted)
        directory = self.node.disk.open_dir(ROOT).subdir("t-0")
        assert not list(verify_partition(directory)), list(verify_partition(directory))

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        log.check()
        assert log.log_end_offset == self.end()
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
        assert log.size_bytes == sum(segment.file.size for segment in log.segments)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), max_bytes=st.integers(1, 2000), min_one=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, min_one: bool) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        bound = data.draw(st.sampled_from([entry.base_offset for entry in self.model] + [self.end()]))
        found = self.log.read_bytes(offset, max_bytes, upper_bound=bound, min_one=min_one)
        wanted = [entry for entry in self.model if entry.last_offset >= offset and entry.last_offset < bound]
        batches = [bytes(found[at : at + header.size]) for at, header in iter_batches(found)]
        assert batches == [entry.data for entry in wanted[: len(batches)]]
        assert b"".join(batches) == found
        assert len(found) <= max_bytes or (min_one and len(batches) == 1)
        if wanted and (min_one or len(wanted[0].data) <= max_bytes):
            assert batches

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def look_up_time(self, data: st.DataObject) -> None:
        asked = data.draw(
            st.sampled_from([timestamp for entry in self.model for timestamp in entry.timestamps])
        ) + data.draw(st.integers(-2, 2))
        records = [
            (timestamp, entry.base_offset + at, entry.epoch)
            for entry in self.model
            for at, timestamp in enumerate(entry.timestamps)
            if entry.base_offset + at >= self.log.log_start_offset
        ]
        found = self.log.times().offset_for_timestamp(asked, upper_bound=self.end())
        assert found == next((record for record in records if record[0] >= asked), None)


def test_a_log_never_loses_what_was_synced_and_never_invents_anything() -> None:
    """A log keeps everything that was synced, and only what was appended.

    See "Recovery" in docs/internals/durability.md.
    """
    run = LogMachine.TestCase
    run.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
    run("runTest").runTest()
