"""The places at which voters have answered or were found, and whether two places may be one process. A voter is
identified by its id and directory; an address is only a hint. PURE.

The log has an address for each voter. If no process answers there as this voter, the voter is searched for at
all addresses of all bootstrap servers (`voter_search.py`). The place where it was found is kept here until it
fails, or until the log has another address.

**One voter answers at one place.** If two places answer as one voter within the time window, two processes
run with copies of one directory. Each process may have voted, so no answer counts while both processes
answer.

One process may have several addresses. So two places count as one in three cases. The places are equal, they
share an IP address, or one name resolves to both (one by IPv4 and one by IPv6).
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.raft.voters import ReplicaKey

__all__ = ["Place", "VoterPlaces"]


@attrs.frozen
class Place:
    """A host and a port. If the host has several IP addresses, `address` is one of them."""

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
        """The host and port by which other nodes can reach this place. An IP address takes the place of the
        host name.
        """
        return self.host if self.address is None else self.address, self.port


class VoterPlaces:
    """The places at which voters have answered, with the times. All times are monotonic seconds."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._answered: dict[ReplicaKey, dict[Place, float]] = {}
        """For each voter and each place, the time of the last answer."""
        self._found: dict[ReplicaKey, tuple[Place, tuple[str, int] | None]] = {}
        """For each voter that was found elsewhere, the place, and the address that the log had at that time.
        """
        self._addresses: dict[str, tuple[str, ...]] = {}
        """The IP addresses of hosts, as last resolved."""

    def note_addresses(self, host: str, addresses: tuple[str, ...]) -> None:
        """Store the IP addresses to which a host name resolves."""
        self._addresses[host] = addresses

    def addresses_of(self, host: str) -> tuple[str, ...]:
        """Return the IP addresses to which a host name last resolved; empty if there are none."""
        return self._addresses.get(host, ())

    def is_same(self, one: Place, other: Place) -> bool:
        """True if both places may belong to one process."""
        if one.port != other.port:
            return False
        if one.host == other.host and one.address is not None and other.address is not None:
            # One name resolves to both addresses. If both are IPv4 or both are IPv6, they most probably
            # belong to two hosts. Otherwise they are the two addresses of one host.
            return one.address == other.address or (":" in one.address) != (":" in other.address)
        there = self._all_of(other)
        return any(each in there for each in self._all_of(one))

    def _all_of(self, place: Place) -> tuple[str, ...]:
        if place.address is not None:
            return (place.address,)
        return (place.host, *self.addresses_of(place.host))

    # -- answers --------------------------------------------------------------------------------------------------

    def note_answer(self, voter: ReplicaKey, place: Place, now: float) -> Place | None:
        """Record that a voter has answered at a place.

        Returns another place at which the same voter has answered within the time window; None if there is
        none.
        """
        since = now - self._window_seconds
        known = {each: at for each, at in self._answered.get(voter, {}).items() if at > since}
        other = next((each for each in known if not self.is_same(each, place)), None)
        known[place] = now
        self._answered[voter] = known
        return other

    def is_another(self, voter: ReplicaKey, place: Place, now: float) -> bool:
        """True if a different voter has answered at this place within the time window. Then `voter` cannot be
        there.
        """
        since = now - self._window_seconds
        return any(
            known != voter and answered.get(place, since) > since
            for known, answered in self._answered.items()
        )

    # -- voters that were found -----------------------------------------------------------------------------------

    def note_found(self, voter: ReplicaKey, place: Place, logged: tuple[str, int] | None) -> bool:
        """Store where a voter was found, although the log has another address.

        Returns True if this place is new.
        """
        news = self._found.get(voter) != (place, logged)
        self._found[voter] = (place, logged)
        return news

    def found(self, voter: ReplicaKey, logged: tuple[str, int] | None) -> Place | None:
        """Return the place where a voter was found; None if there is none, or the log has had another address
        since.
        """
        place, known = self._found.get(voter, (None, None))
        return place if known == logged else None

    def forget(self, voter: ReplicaKey) -> None:
        """Drop the place where a voter was found, because it no longer answers there."""
        self._found.pop(voter, None)
