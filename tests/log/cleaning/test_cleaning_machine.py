"""A log that is cleaned many times, compared with a dict.

The disk loses unsynced data, and crashes come at any operation.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.data_plane.log.cleaning.offset_map import SLOT_BYTES
from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.disk import Keep
from sim.machine.disk_files import PowerCut
from testkit.by_hand import NOW_MS
from tests.log.cleaning.passes import clean
from tests.log.compacted.naive_cleaner import visible
from tests.log.compacted.test_swap import temporary_files
from tests.log.support import ROOT, Node, append, content, new_disk
from tests.schedule import examples

MAP_KEYS = (5, 1000)
"""Slots of the cleaner's map of keys. With five slots four keys fit, and no batch has more keys."""
PASSES_MAX = 200
DELETE_RETENTION_MS = 1000
KEEPS = st.sampled_from(["all", "synced", "random"])
Crash = tuple[str, int] | None
"""A power loss at the n-th disk operation from now on.

The text says which operations count: all of them, or only renames or removals.
"""
CRASHES: st.SearchStrategy[Crash] = (
    st.none()
    | st.tuples(st.just(""), st.integers(1, 60))
    | st.tuples(st.sampled_from(["rename", "remove"]), st.integers(1, 12))
)


@attrs.frozen
class Written:
    """A record that was appended. `batch` is the base offset of its batch."""

    offset: int
    key: bytes
    value: bytes | None
    epoch: int
    batch: int


class CompactedLog(RuleBasedStateMachine):
    """A model of the log: all records that were appended and not truncated, and offsets that a pass may have removed.

    A power loss may undo a truncation. `past` has the histories that could come back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model: list[Written] = []
        self.past: list[list[Written]] = []
        self.superseded: set[int] = set()
        self.removable: list[set[int]] = []
        self.end = 0
        self.durable = 0
        self.epoch = 0
        self.serial = 0
        self.dedupe_bytes = 0
        self.now_ms = NOW_MS
        self.horizons: dict[tuple[int, int, bytes], int] = {}
        """The earliest time at which a tombstone may be removed, by its offset, epoch and key. A pass has set it."""

    @initialize(
        seed=st.integers(0, 1 << 16),
        segment_bytes=st.sampled_from([300, 700]),
        map_keys=st.sampled_from(MAP_KEYS),
    )
    def begin(self, seed: int, segment_bytes: int, map_keys: int) -> None:
        self.dedupe_bytes = SLOT_BYTES * map_keys
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            file_delete_delay_ms=1000,
            cleanup_policy=("compact",),
            delete_retention_ms=DELETE_RETENTION_MS,
        )
        self.node = Node(config, new_disk(seed))
        self.log = self.node.log()
        self.log.flush()
        self.node.log_dir.checkpoints.write_recovery_points()

    @rule(keys=st.lists(st.integers(0, 5), min_size=1, max_size=4), batches=st.integers(1, 6))
    def append(self, keys: list[int], batches: int) -> None:
        for _ in range(batches):
            builder = RecordBatchBuilder()
            records = []
            for key in keys:
                self.serial += 1
                value = None if self.serial % 7 == 0 else b"%d" % self.serial
                builder.append(NOW_MS + self.serial, b"k%d" % key, value)
                records.append((b"k%d" % key, value))
            base = append(self.log, builder.build(), epoch=self.epoch).base_offset
            self.model += [
                Written(base + at, key, value, self.epoch, base) for at, (key, value) in enumerate(records)
            ]
        self.end = self.log.log_end_offset
        self.log.advance_high_watermark(self.end)

    @rule(crash=CRASHES, keep=KEEPS)
    def flush(self, crash: Crash, keep: Keep) -> None:
        def act() -> None:
            self.log.flush()
            self.durable = self.log.recovery_point
            self.past, self.removable = [], []
            self.node.log_dir.checkpoints.write_recovery_points()

        self.survive(act, crash, keep)

    @rule(crash=CRASHES, keep=KEEPS)
    def clean(self, crash: Crash, keep: Keep) -> None:
        """Run a pass of the real cleaner.

        The pass may remove each record that has a later record of its key below the end of the pass.
        """
        end = cleanable_end(self.log)
        later: set[bytes] = set()
        goes: set[int] = set()
        for record in reversed(self.model):
            if record.offset < end:
                if record.key in later:
                    goes.add(record.offset)
                later.add(record.key)
        self.superseded |= goes | self.expired(end)

        def act() -> None:
            # If its map of keys is full, a pass ends before `end`.
            for _ in range(PASSES_MAX):
                clean(self.log, end, dedupe_bytes=self.dedupe_bytes, now_ms=self.now_ms)
                if self.log.cleaning.first_dirty_offset >= end:
                    break
            assert max(self.log.cleaning.first_dirty_offset, self.log.log_start_offset) >= end
            assert not [record for record in visible(self.log) if record.offset in goes]

        self.survive(act, crash, keep)

    def expired(self, end: int) -> set[int]:
        """Return the offsets of tombstones below `end` that this pass may remove.

        An earlier pass saw them long enough ago (KIP-534).
        """
        found = set()
        for record in self.model:
            if record.value is None and record.offset < end:
                seen = record.offset, record.epoch, record.key
                if self.horizons.setdefault(seen, self.now_ms + DELETE_RETENTION_MS) <= self.now_ms:
                    found.add(record.offset)
        return found

    @rule(milliseconds=st.sampled_from([1, DELETE_RETENTION_MS - 1, DELETE_RETENTION_MS]))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(keys=st.lists(st.integers(0, 3), min_size=2, max_size=4), crash=CRASHES, keep=KEEPS)
    def fill_and_clean(self, keys: list[int], crash: Crash, keep: Keep) -> None:
        """Append enough for a swap, and run a pass. Random steps alone rarely lead to a swap."""
        self.append(keys, 8)
        self.flush(None, "all")
        self.clean(crash, keep)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), crash=CRASHES, keep=KEEPS)
    def truncate(self, data: st.DataObject, crash: Crash, keep: Keep) -> None:
        """Truncate the log, even below its cleaned part, as an unclean election may do.

        Removed records stay removed.
        """
        offset = data.draw(st.integers(0, self.end))
        self.epoch += 1
        ends = [header.next_offset for _, header in iter_batches(content(self.log))]
        self.durable = min(self.durable, max((end for end in ends if end <= offset), default=0))
        self.past.append(list(self.model))
        self.removable.append(set(self.superseded))

        def act() -> None:
            self.log.truncate_to(offset)
            assert self.log.log_end_offset <= offset
            assert self.log.cleaning.first_dirty_offset <= offset

        kept = [record for record in self.model if record.batch + self.count(record.batch) <= offset]
        if self.survive(act, crash, keep):
            self.end = self.log.log_end_offset
            self.model = [record for record in kept if record.offset < self.end]
            assert all(record.offset in self.superseded for record in kept if record.offset >= self.end)
            self.superseded = {each for each in self.superseded if each < self.end}
            self.check()

    def count(self, batch: int) -> int:
        return sum(1 for record in self.model if record.batch == batch)

    @rule(milliseconds=st.sampled_from([0, 1000, 70_000]))
    def background(self, milliseconds: int) -> None:
        self.node.look(milliseconds)
        self.durable = max(self.durable, self.log.recovery_point)

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule(keep=KEEPS)
    def crash(self, keep: Keep) -> None:
        self.restart(keep)

    @rule()
    def stop_and_start(self) -> None:
        first_dirty = self.log.cleaning.first_dirty_offset
        self.node.log_dir.close_clean(7)
        self.node.disk.crash("synced")
        self.node.start()
        self.log = self.node.log()
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.durable = self.end
        self.past, self.removable = [], []
        assert self.log.log_end_offset == self.end
        assert self.log.cleaning.first_dirty_offset == first_dirty
        self.check()

    # --- crashes

    def survive(self, act: Callable[[], object], crash: Crash, keep: Keep) -> bool:
        disk = self.node.disk
        if crash is not None:
            wanted, left = crash

            def look(operation: str, path: str, position: int, count: int) -> None:
                nonlocal left
                left -= wanted in ("", operation)
                if not left:
                    disk.on_operation = None
                    disk.crash_at(disk.operation_count)

            disk.on_operation = look
        try:
            act()
        except PowerCut:
            self.restart("random" if keep == "all" else keep)
            return False
        finally:
            disk.on_operation = None
            disk.crash_at(0)
        return True

    def restart(self, keep: Keep) -> None:
        """Crash and restart.

        The log must be a prefix of a history, without records that a pass was allowed to remove.
        """
        self.node.disk.crash(keep)
        self.node.start()
        self.log = self.node.log()
        self.end = self.log.log_end_offset
        assert self.end >= self.durable
        for history, superseded in (
            (self.model, self.superseded),
            *zip(self.past, self.removable, strict=True),
        ):
            kept = [record for record in history if record.offset < self.end]
            if self.fits(kept, superseded):
                self.model, self.superseded = kept, {each for each in superseded if each < self.end}
                break
        else:
            raise AssertionError(f"the log up to {self.end} is no prefix of an earlier state")
        self.durable = min(self.durable, self.end)
        if keep != "all":
            self.past, self.removable = [], []
        self.log.advance_high_watermark(self.end)
        self.check()

    def fits(self, history: list[Written], superseded: set[int]) -> bool:
        """True if the log has these records, except some that a pass may have removed."""
        known = {record.offset: record for record in history}
        found = visible(self.log)
        offsets = {record.offset for record in found}
        return all(
            record.offset in known
            and (record.key, record.value, record.leader_epoch)
            == (known[record.offset].key, known[record.offset].value, known[record.offset].epoch)
            for record in found
        ) and all(offset in offsets or offset in superseded for offset in known)

    # --- invariants

    def check(self) -> None:
        assert self.fits(self.model, self.superseded)
        directory = self.node.disk.open_dir(ROOT).subdir("t-0")
        damage = list(verify_partition(directory))
        assert not damage, damage
        assert not [name for name in temporary_files(directory) if not name.endswith(".deleted")]

    @invariant()
    def parts_agree(self) -> None:
        if hasattr(self, "log"):
            self.log.check()
            assert self.log.log_end_offset == self.end
            assert self.fits(self.model, self.superseded)


def test_cleaning_keeps_the_latest_of_every_key_through_crashes_and_truncations() -> None:
    """Records are removed only if a later record of their key is durable.

    Offsets and epochs stay, through crashes and truncations.
    """
    run = CompactedLog.TestCase
    run.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)
    run("runTest").runTest()
