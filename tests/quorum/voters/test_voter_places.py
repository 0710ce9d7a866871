"""The addresses at which voters answer. A voter, known by id and directory, must answer at one place only."""

from __future__ import annotations

from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica.asking.voter_places import Place, VoterPlaces

ONE, TWO = ReplicaKey(1, b"first directory."), ReplicaKey(2, b"second directory")
OLD, NEW = Place("old", 9093), Place("new", 9093)
WINDOW = 2.0


def places() -> VoterPlaces:
    return VoterPlaces(WINDOW)


def test_a_voter_that_answers_at_two_places_is_noticed() -> None:
    """Within the window a voter answers at two places. Each answer is reported with the other place."""
    known = places()
    assert known.note_answer(ONE, OLD, 10.0) is None
    assert known.note_answer(ONE, NEW, 11.9) == OLD
    assert known.note_answer(ONE, OLD, 12.0) == NEW


def test_a_voter_that_has_moved_answers_at_one_place_after_the_window() -> None:
    """A voter is silent for the window, and then answers at another place. This is a move, and nothing is reported."""
    known = places()
    assert known.note_answer(ONE, OLD, 10.0) is None
    assert known.note_answer(ONE, NEW, 12.0) is None
    assert known.note_answer(ONE, NEW, 12.1) is None


def test_voters_are_judged_each_by_itself() -> None:
    """Places are compared only within one voter. Another directory of the same node is another voter."""
    known = places()
    assert known.note_answer(ONE, OLD, 10.0) is None
    assert known.note_answer(TWO, NEW, 10.0) is None
    assert known.note_answer(ReplicaKey(1, b"another disk...."), NEW, 10.0) is None


def test_a_name_and_its_address_are_one_place() -> None:
    """A host name, an alias and its address are the same place. Another port is another place."""
    known = places()
    known.note_addresses("old", ("10.0.0.1",))
    known.note_addresses("alias", ("10.0.0.1",))
    assert known.note_answer(ONE, OLD, 10.0) is None
    assert known.note_answer(ONE, Place("10.0.0.1", 9093), 10.0) is None
    assert known.note_answer(ONE, Place("alias", 9093), 10.0) is None
    assert known.note_answer(ONE, Place("10.0.0.1", 9094), 10.0) is not None


def test_a_host_with_two_families_is_one_place_and_two_hosts_of_one_name_are_two() -> None:
    """An IPv4 and an IPv6 address of one name are the same host. Two IPv4 addresses of one name are two hosts."""
    known = places()
    first, second = Place("voters", 9093, "10.0.0.1"), Place("voters", 9093, "10.0.0.2")
    assert known.note_answer(ONE, first, 10.0) is None
    assert known.note_answer(ONE, Place("voters", 9093, "fd00::1"), 10.0) is None
    assert known.note_answer(ONE, second, 10.0) == first


def test_a_voter_is_found_until_the_log_names_another_address() -> None:
    """A found address is used while the log's entry stays the same and no request fails.

    A newer entry in the log replaces it.
    """
    known = places()
    assert known.note_found(ONE, NEW, ("old", 9093))
    assert not known.note_found(ONE, NEW, ("old", 9093))
    assert known.found(ONE, ("old", 9093)) == NEW
    assert known.found(ONE, ("newer", 9093)) is None
    known.forget(ONE)
    assert known.found(ONE, ("old", 9093)) is None


def test_a_place_at_which_another_voter_answers_is_not_asked() -> None:
    """A voter is not searched at a place where another voter has answered lately.

    After the window it may have moved there.
    """
    known = places()
    known.note_answer(ONE, OLD, 10.0)
    assert known.is_another(TWO, OLD, 11.0)
    assert not known.is_another(ONE, OLD, 11.0)
    assert not known.is_another(TWO, NEW, 11.0)
    assert not known.is_another(TWO, OLD, 12.0)
