"""Connections per second from one address (KIP-612): the quotas of the entity `ip`. PURE.

An address may open a burst of connections. The burst is as large as the quota for all measuring windows except
one. Further connections are refused until the quota allows them again. (Kafka keeps such a connection open for
a while before it closes it.)
"""

from __future__ import annotations

import ipaddress
from math import inf

from odradek.metadata_quorum.quotas.token_bucket import TokenBucket
from odradek.named_states import reached

__all__ = ["ADDRESSES_MAX", "AddressRates"]

ADDRESSES_MAX = 10_000
"""The most addresses that have a token bucket at the same time. A new address replaces the oldest one."""


class AddressRates:
    """The token buckets of the addresses that have a quota."""

    def __init__(self, burst_seconds: float) -> None:
        self._burst_seconds = burst_seconds
        self._default: float | None = None
        self._rates: dict[str, float] = {}
        self._spellings: dict[str, dict[str, float]] = {}
        """For each address, its quotas by the spelling in the metadata, since one address may be written in
        several ways.
        """
        self._buckets: dict[str, TokenBucket] = {}
        self.refused = 0
        """The number of connections refused since the start."""

    def set_quota(self, written: str | None, rate: float | None) -> None:
        """Set the quota of one address, in connections per second.

        If `written` is None, set the default of all addresses. If `rate` is None, remove the quota. If an
        address has several spellings, the lowest quota applies.
        """
        if written is None:
            self._default = rate
        else:
            address = _as_peers_say_it(written)
            given = self._spellings.setdefault(address, {})
            if rate is not None:
                given[written] = rate
            else:
                given.pop(written, None)
            if given:
                self._rates[address] = min(given.values())
            else:
                del self._spellings[address]
                self._rates.pop(address, None)
        if self._default is None and not self._rates:
            self._buckets.clear()

    def rate(self, address: str) -> float:
        """Return how many connections per second the address may open; infinity if no quota applies."""
        rate = self._rates.get(address, self._default)
        return inf if rate is None else rate

    def admits(self, address: str, now: float) -> bool:
        """True if the address may open a connection now. The connection is then charged to the address."""
        rate = self.rate(address)
        if rate == inf:
            return True
        burst = max(1.0, rate * self._burst_seconds)
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= ADDRESSES_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[address] = TokenBucket(rate, burst, now)
        elif bucket.rate != rate:
            bucket.set_rate(rate, burst, now)
        if not bucket.has(1.0, now):
            reached("quotas.connection_refused")
            self.refused += 1
            return False
        bucket.charge(1.0, now)
        return True


def _as_peers_say_it(address: str) -> str:
    """Return an address in the form in which sockets report it: `2001:DB8:0::1` becomes `2001:db8::1`,
    `::ffff:10.0.0.1` becomes `10.0.0.1`.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # It is a host name, which Kafka's controllers accept, too.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
