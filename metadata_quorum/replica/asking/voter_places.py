"""The places at which voters have answered: a voter is identified by its id and its directory; an address is only a
hint. PURE.

The log has an address for each voter. If no process answers there as this voter, it is searched at all addresses of
all bootstrap servers (`voter_search.py`). The place that was found is kept here until it fails, or until the log
has another address.

**One voter answers at one place.** Two places that answer for one voter within the window are two processes with one
directory: a copy. Each of them may have voted by itself, so their answers do not count while this lasts.

One process may have several addresses. Two places count as one in three cases. They are equal; they have an address
in common; or one name resolves to both, by IPv4 and by IPv6.
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.raft.voters import ReplicaKey

__all__ = ["Place", "VoterPlaces"]


@attrs.frozen
class Place:
    """A host and a port. `address` is one of the host's addresses, where it has several."""

    host: str
    port: int
    address: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.host}:{self.port}"
            if self.address is None
            else f"{self.host}:{self.port} ({self.address})"
        )

    @property
    def named(self) -> tuple[str, int]:
        """Host and port that other nodes can use. If the host has several addresses, this is the address that was
        used.
        """
        return self.host if self.address is None else self.address, self.port


class VoterPlaces:
    """The places of voters, as their answers show them. Times are monotonic seconds."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._answered: dict[ReplicaKey, dict[Place, float]] = {}
        """The time of the last answer of each voter at each place."""
        self._found: dict[ReplicaKey, tuple[Place, tuple[str, int] | None]] = {}
        """The place where a voter was found, and the address that the log had then."""
        self._addresses: dict[str, tuple[str, ...]] = {}
        """The addresses of hosts, as they were last resolved."""

    def note_addresses(self, host: str, addresses: tuple[str, ...]) -> None:
        """Store the addresses to which a host's name resolves."""
        self._addresses[host] = addresses

    def addresses_of(self, host: str) -> tuple[str, ...]:
        """Return the addresses to which this host's name was last resolved."""
        return self._addresses.get(host, ())

    def is_same(self, one: Place, other: Place) -> bool:
        """True if both places may be one process."""
        if one.port != other.port:
            return False
        if one.host == other.host and one.address is not None and other.address is not None:
            # Two addresses of one family mean two hosts behind one name. Two addresses of different families
            # are most likely one host.
            return one.address == other.address or (":" in one.address) != (":" in other.address)
        there = self._all_of(other)
        return any(each in there for each in self._all_of(one))

    def _all_of(self, place: Place) -> tuple[str, ...]:
        if place.address is not None:
            return (place.address,)
        return (place.host, *self.addresses_of(place.host))

    # -- answers --------------------------------------------------------------------------------------------------

    def note_answer(self, voter: ReplicaKey, place: Place, now: float) -> Place | None:
        """Note that a voter has answered; return another place at which it has answered within the window."""
        since = now - self._window_seconds
        known = {each: at for each, at in self._answered.get(voter, {}).items() if at > since}
        other = next((each for each in known if not self.is_same(each, place)), None)
        known[place] = now
        self._answered[voter] = known
        return other

    def is_another(self, voter: ReplicaKey, place: Place, now: float) -> bool:
        """True if another voter has answered at this place within the window, so that this voter must be elsewhere."""
        since = now - self._window_seconds
        return any(
            known != voter and answered.get(place, since) > since
            for known, answered in self._answered.items()
        )

    # -- voters that were found -----------------------------------------------------------------------------------

    def note_found(self, voter: ReplicaKey, place: Place, logged: tuple[str, int] | None) -> bool:
        """Store where a voter is, although the log has another address. Return True if this is new."""
        news = self._found.get(voter) != (place, logged)
        self._found[voter] = (place, logged)
        return news

    def found(self, voter: ReplicaKey, logged: tuple[str, int] | None) -> Place | None:
        """Return the place where a voter was found; None if the log has another address since."""
        place, known = self._found.get(voter, (None, None))
        return place if known == logged else None

    def forget(self, voter: ReplicaKey) -> None:
        """Forget the place where a voter was found, because it no longer answers there."""
        self._found.pop(voter, None)
