"""The scrub finds silent damage in unread data, in a simulated cluster. It repairs only if others are in sync."""

from __future__ import annotations

from odradek.data_plane.disks.scrubber import ScrubState
from odradek.wire.topic_partition import TopicPartition
from sim.machine.disk_files import SimFile
from tests.cluster.disks.test_troubled_disks import Troubled

SETTINGS = {"odradek.scrub.interval.ms": "20000", "log.flush.interval.messages": "1"}
ROT_AT = 75


def flip_a_bit(case: Troubled, node_id: int) -> None:
    """Flip a bit in the middle of the first batch of a broker's replica, unnoticed by the broker."""
    file = case.broker(node_id).partition("t", 0).log.active.file
    assert isinstance(file, SimFile)
    file.content[ROT_AT] ^= 0x10


def set_aside(case: Troubled, node_id: int) -> int:
    return case.broker(node_id).rotten.statistics()["set_aside"]


def found(case: Troubled, node_id: int) -> int:
    return sum(state.rotten for state in case.broker(node_id).scrubber.states.values())


def test_a_damaged_checkpoint_begins_a_round() -> None:
    """A damaged scrub checkpoint is ignored, so a new round begins."""
    times = b'"began_ms": 5, "ended_ms": %s, "after": %s}'
    for text in (
        b"",
        b"[]",
        b"[" * 200_000,
        b"\xff",
        b"{" + times % (b"Infinity", b"null"),
        b"{" + times % (b"9223372036854775808", b"null"),
        b"{" + times % (b"-9223372036854775808", b"null"),
        b"{" + times % (b"6", b'["t"]'),
        b"{" + times % (b"6", b'["t", "x"]'),
    ):
        state = ScrubState()
        state.load(text)
        assert state == ScrubState(), text[:50]
    state = ScrubState()
    state.load(ScrubState(5, 6, TopicPartition("t", 1)).text())
    assert (state.began_ms, state.ended_ms, state.after) == (5, 6, ("t", 1))


def test_rot_that_nobody_reads_is_found_and_repaired() -> None:
    """When the scrub finds damage in the leader's log, another replica leads, and the log is fetched again
    completely."""

    async def script(case: Troubled) -> None:
        for _ in range(5):
            await case.write()
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.world.sleep(5.0)
        flip_a_bit(case, 1)
        await case.until(lambda: set_aside(case, 1) == 1, writing=False)
        assert found(case, 1) == 1
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3], writing=False)
        assert case.seen_by(2).leader != 1
        end_offset = case.broker(case.seen_by(2).leader).partition("t", 0).log.log_end_offset
        await case.until(
            lambda: case.broker(1).partition("t", 0).log.log_end_offset == end_offset, writing=False
        )
        await case.check_nothing_is_lost()
        rounds = case.broker(1).scrubber.states
        ended = {path: state.ended_ms for path, state in rounds.items()}
        await case.until(lambda: all(rounds[path].ended_ms > ended[path] for path in rounds), writing=False)
        assert found(case, 1) == 1, "the scrub found damage in the new log, too"
        assert found(case, 2) == found(case, 3) == 0

    Troubled(settings=SETTINGS).play(script)


def test_the_last_in_sync_is_reported_and_kept() -> None:
    """If no other replica is in sync, the damaged leader is kept and only reported."""

    async def script(case: Troubled) -> None:
        await case.write()
        await case.member(3).kill("all")
        await case.until(lambda: case.seen_by(2).isr == (1, 2))
        await case.member(2).kill("all")
        await case.until(lambda: case.seen_by(1).isr == (1,), writing=False)
        await case.world.sleep(5.0)
        flip_a_bit(case, 1)
        await case.until(lambda: found(case, 1) == 1, writing=False)
        await case.world.sleep(30.0)
        assert set_aside(case, 1) == 0
        assert case.seen_by(1).leader == 1
        assert case.broker(1).rotten.statistics()["rotten"] == 1

    Troubled(settings={**SETTINGS, "min.insync.replicas": "1"}).play(script)


def test_a_round_goes_on_after_a_restart() -> None:
    """After a restart the scrub keeps the end of its last round, and begins the next one an interval later."""

    async def script(case: Troubled) -> None:
        await case.write()
        states = case.broker(1).scrubber.states
        await case.until(lambda: all(state.ended_ms >= 0 for state in states.values()), writing=False)
        ended = {path: state.ended_ms for path, state in states.items()}
        await case.member(1).kill("all")
        await case.member(1).start()
        await case.whole(60.0)
        again = case.broker(1).scrubber.states
        await case.world.sleep(1.0)
        assert all(again[path].ended_ms >= ended[path] for path in ended)

    Troubled(settings=SETTINGS).play(script)
