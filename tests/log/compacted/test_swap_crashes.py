"""The power is cut at every operation of a pass. The next start finds the old segments or the new ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.dump import verify_partition
from odradek.env.ports import Dir
from sim.machine.disk import Keep
from sim.machine.disk_files import PowerCut
from tests.log.compacted.naive_cleaner import clean, latest_values, visible
from tests.log.compacted.test_swap import COMPACTED, fill_keyed, temporary_files, written
from tests.log.support import ROOT, batch, content, new_disk, open_log

KEEPS: tuple[Keep, ...] = ("all", "synced", "random")
BATCHES = 18


def states_of(seed: int) -> tuple[list[bytes], list[int]]:
    """Return the log before a pass and after each swap, and the number of disk operations until each of these."""
    node, log, _ = written(seed, BATCHES)
    begun = node.disk.operation_count
    states, counts = [content(log)], [0]
    reading = node.disk.operation_count - begun

    def note() -> None:
        nonlocal reading
        counts.append(node.disk.operation_count - begun - reading)
        before = node.disk.operation_count
        states.append(content(log))
        reading += node.disk.operation_count - before

    clean(log, cleanable_end(log), Random(seed), note)
    return states, counts


def crash(seed: int, number: int, keep: Keep, states: list[bytes]) -> int:
    """Cut the power at an operation of a pass, restart, and compare. Return the number of swaps that are found."""
    node, log, sequence = written(seed, BATCHES)
    done = 0

    def settled() -> None:
        nonlocal done
        done += 1

    end = cleanable_end(log)
    node.disk.crash_at(node.disk.operation_count + number)
    with suppress(PowerCut):
        clean(log, end, Random(seed), settled)
    node.disk.crash(keep)
    node.start()
    log = node.log()
    found = content(log)
    assert found in states[done : done + 2], (
        f"seed {seed}, operation {number}, {keep}: the log is neither the old nor the new one"
    )
    directory = node.disk.open_dir(ROOT).subdir("t-0")
    assert not temporary_files(directory)
    assert not list(verify_partition(directory))
    log.check()
    assert log.load_producers().entries[5].last_sequence == sequence - 1
    swaps = states.index(found)
    # A later pass gives the same result.
    log.advance_high_watermark(log.log_end_offset)
    log.flush()
    expected = visible(log)
    clean(log, cleanable_end(log), Random(seed))
    assert latest_values(visible(log)) == latest_values(expected)
    assert not list(verify_partition(directory))
    return swaps


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_in_any_operation_ends_in_the_old_or_the_new_segments(seed: int) -> None:
    """The power is cut at any operation of a pass. Each swap is found either complete or not begun."""
    states, counts = states_of(seed)
    found = {crash(seed, number, keep, states) for number in range(1, counts[-1] + 2) for keep in KEEPS}
    assert found == set(range(len(states)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_while_the_next_start_finishes_a_swap(seed: int) -> None:
    """The power is cut again during the next start. The start after it can finish the swap."""
    states, counts = states_of(seed)
    for number in range(1, counts[1] + 1, 2):
        for again in range(1, 40, 3):
            node, log, _ = written(seed, BATCHES)
            node.disk.crash_at(node.disk.operation_count + number)
            with pytest.raises(PowerCut):
                clean(log, cleanable_end(log), Random(seed))
            node.disk.crash("random")
            node.disk.crash_at(node.disk.operation_count + again)
            try:
                node.start()
            except PowerCut:
                node.disk.crash("random")
                node.start()
            node.disk.crash_at(0)
            assert content(node.log()) in states[:2]
            assert not temporary_files(node.disk.open_dir(ROOT).subdir("t-0"))


# --- interrupted swaps of Kafka


def kafka_directory() -> tuple[Dir, bytes, bytes]:
    """Make segments 0, 10, 20 and 30. Return all batches, then those that Kafka's cleaner makes of the first three."""
    directory = new_disk().open_dir(ROOT, create=True)
    log = open_log(directory, COMPACTED)
    bases = []
    for base in (0, 10, 20, 30):
        bases.append(log.log_end_offset)
        assert log.log_end_offset == base
        for _ in range(5):
            log.append(memoryview(batch(2)), 0, 0, 0)
        log.roll(0)
    fill_keyed(log, Random(1), 1)
    log.close()
    old = {base: directory.read_bytes(f"{base:020d}.log") for base in (0, 10, 20, 30)}
    size = len(batch(2))
    cleaned = old[0][:size] + old[10][size : 2 * size] + old[20][4 * size :]
    rest = old[30] + directory.read_bytes(f"{log.segments[-1].base_offset:020d}.log")
    return directory, b"".join(old[base] for base in (0, 10, 20)) + rest, cleaned + rest


KAFKAS_STATES = {
    "half written": ([(0, ".cleaned")], [], False),
    "log renamed": ([(0, ".swap")], ["index.cleaned"], False),
    "renamed": ([(0, ".swap")], ["index.swap", "timeindex.swap"], True),
    "first source gone": ([(0, ".swap"), (0, "-")], ["index.swap"], True),
    "two sources gone": ([(0, ".swap"), (0, "-"), (10, "-")], ["index.swap"], True),
    "all sources gone": ([(0, ".swap"), (0, "-"), (10, "-"), (20, "-")], ["index.swap"], True),
    "log is live": ([(0, ""), (10, "-"), (20, "-")], ["index.swap", "timeindex.swap"], True),
    "split under way": ([(0, ".cleaned"), (10, ".swap")], ["index.cleaned"], False),
}


@pytest.mark.parametrize("state", KAFKAS_STATES)
def test_a_swap_that_kafka_was_interrupted_at_is_finished_or_undone(state: str) -> None:
    """Kafka's cleaner was interrupted.

    As in its LogLoader, `.swap` files count unless a `.cleaned` file begins at or below their offset.
    """
    directory, old, new = kafka_directory()
    changes, indexes, is_new = KAFKAS_STATES[state]
    cleaned = new[: len(new) - (len(old) - 3 * len(batch(2)) * 5)]
    for base, suffix in changes:
        name = f"{base:020d}.log"
        if suffix == "-":
            directory.rename(name, f"{name}.deleted")
            if directory.exists(f"{base:020d}.index"):
                directory.rename(f"{base:020d}.index", f"{base:020d}.index.deleted")
        else:
            directory.open(f"{base:020d}.log{suffix}.new", create=True).append(cleaned)
            directory.rename(f"{base:020d}.log{suffix}.new", f"{base:020d}.log{suffix}")
    for index in indexes:
        directory.open(f"{0:020d}.{index}", create=True)
    log = open_log(directory, COMPACTED, clean=False, recovery_point=30)
    assert content(log) == (new if is_new else old)
    assert not temporary_files(directory)
    assert not list(verify_partition(directory))


def _flip(position: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = position % len(data)
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]

    return change


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped value": _flip(-3),
    "a flipped base offset": _flip(-5 * len(batch(2))),
    "a base offset within the last segment": lambda data: (
        data[: -batch_size()] + moved(data[-batch_size() :], 12)
    ),
    "a cut file": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
}


def batch_size() -> int:
    return len(batch(2))


def moved(data: bytes, distance: int) -> bytes:
    """Return the batch at a higher offset. Its checksum stays valid, as it does not cover the base offset."""
    (base_offset,) = struct.unpack_from(">q", data)
    return struct.pack(">q", base_offset + distance) + data[8:]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_damaged_swap_takes_the_place_of_nothing(damage: str, clean_stop: bool) -> None:
    """A `.swap` file is damaged, and its sources still have their names.

    The sources stay, and so do all later segments.
    """
    directory, old, new = kafka_directory()
    cleaned = new[: len(new) - (len(old) - 3 * len(batch(2)) * 5)]
    directory.open(f"{0:020d}.log.swap", create=True).append(DAMAGES[damage](cleaned))
    directory.open(f"{0:020d}.index.swap", create=True)
    log = open_log(directory, COMPACTED, clean=clean_stop, recovery_point=30)
    assert content(log) == old
    assert not temporary_files(directory)
    assert not list(verify_partition(directory))


def test_a_damaged_swap_without_sources_spares_the_last_segment() -> None:
    """A `.swap` file is damaged and its sources are gone.

    Later segments stay, although the last batch of the `.swap` file has an offset beyond the log.
    """
    directory, old, new = kafka_directory()
    cleaned = new[: len(new) - (len(old) - 3 * len(batch(2)) * 5)]
    swapped = cleaned[: -batch_size()] + moved(cleaned[-batch_size() :], 1 << 40)
    directory.open(f"{0:020d}.log.swap", create=True).append(swapped)
    for base in (0, 10, 20):
        directory.rename(f"{base:020d}.log", f"{base:020d}.log.deleted")
    last = max(name for name in directory.list() if name.endswith(".log"))
    before = directory.read_bytes(last)
    open_log(directory, COMPACTED, clean=True, recovery_point=30)
    assert directory.read_bytes(last) == before
