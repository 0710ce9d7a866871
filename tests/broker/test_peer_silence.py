"""When another broker is silent for this one: who is awaited, pauses of the own process, and brokers nobody asked."""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.peer_silence import MARGIN_SECONDS, NEVER, PeerSilence

SUSPICION_MS = 3_000


def silence(*followers: int, suspicion_ms: int = SUSPICION_MS, wait_ms: int = 500) -> PeerSilence:
    """Make the memory of a broker that leads a partition with these followers in the ISR."""
    return PeerSilence(suspicion_ms, wait_ms, followers.__contains__)


def test_a_leader_that_owes_an_answer_becomes_silent() -> None:
    """A leader has answered at 10 s, and was asked again at once. It is silent from 13 s on."""
    memory = silence()
    memory.asked(2, 9.5)
    memory.heard(2, 10.0)
    memory.asked(2, 10.0)
    assert memory.silent(12.9) == {}
    assert memory.next_at(12.9) == 13.0 + MARGIN_SECONDS
    assert memory.silent(13.0) == {2: 3.0}
    memory.heard(2, 13.5)
    assert memory.silent(13.6) == {}


def test_a_leader_that_was_not_asked_owes_nothing() -> None:
    """All partitions of a leader back off, so this broker does not ask. Asked again, the leader has the full time."""
    memory = silence()
    memory.asked(2, 1.0)
    memory.heard(2, 1.0)
    memory.asked(2, 1.0)
    memory.rests(2)
    assert memory.silent(9.0) == {}
    memory.heard(2, 10.0)
    memory.asked(2, 12.0)
    assert memory.silent(14.9) == {}
    assert memory.silent(15.0) == {2: 5.0}


def test_a_follower_in_the_isr_becomes_silent() -> None:
    """Fetches of a follower are awaited while it is in an ISR that this broker leads, and only then."""
    memory = silence(3)
    memory.heard(3, 1.0)
    memory.heard(4, 1.0)
    assert memory.silent(4.0) == {3: 3.0}
    assert memory.next_at(4.0) == NEVER


def test_nothing_is_said_of_a_broker_that_was_never_heard() -> None:
    """A broker that has just started cannot know whether another one has died before."""
    memory = silence(3)
    memory.asked(3, 1.0)
    assert memory.silent(100.0) == {}


def test_an_own_pause_is_no_silence_of_others() -> None:
    """This process was paused for 2.5 s. What the others sent in that time was not received."""
    memory = silence(3)
    memory.heard(3, 1.0)
    memory.look(1.0)
    memory.look(3.5)
    assert memory.silent(4.0) == {}
    memory.look(4.5)
    memory.look(5.5)
    assert memory.silent(6.5) == {3: 3.0}


@pytest.mark.parametrize(("wait_ms", "first"), [(500, 3.0), (2_000, 4.0)])
def test_idle_fetches_are_no_silence(wait_ms: int, first: float) -> None:
    """If `replica.fetch.wait.max.ms` is long, a silence must last for two such waits."""
    memory = silence(3, wait_ms=wait_ms)
    memory.heard(3, 0.0)
    assert memory.silent(first - 0.1) == {}
    assert memory.silent(first) == {3: first}


def test_kafkas_rule() -> None:
    """With `odradek.broker.suspicion.ms=0`, nobody is ever silent."""
    memory = silence(3, suspicion_ms=0)
    memory.heard(3, 0.0)
    memory.look(1e6)
    assert memory.silent(1e6) == {}
    assert memory.next_at(1e6) == NEVER
