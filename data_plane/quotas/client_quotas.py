"""The quotas of a node's clients: the charges of each connection, and its waits. PURE.

Theory of operation
-------------------
`ClientQuotas` follows the metadata image. Connections call it only while any quota exists.

Each connection keeps a `ClientShare`: the accounts to which its present principal and client id are charged. It
gets a new share when the client id changes, or when `generation` has grown. An `Account` belongs to all clients
that share a quota (`quota_levels`), on all listeners. It has a token bucket, and counts the clients' usage and
waits.

* **Produce** pays the bytes of its request when it comes; the answer names the wait.
* **Fetch** pays the bytes of its answer. A fetch of a client in debt is answered empty (KIP-219). One fetch takes at
  most the quota of `quota.window.size.seconds`.
* **Requests** pay their processor time. 100 % is one core. The wait is one window at most, so that sessions do not
  expire.

A client in debt is muted: its connection is not read until the wait is over, whatever the client does.

Client ids are endless. There are `ACCOUNTS_MAX` accounts at most; later clients share one account of each kind, and
of each value. An account that was idle for `IDLE_SECONDS_MAX` is dropped. If there are too many accounts, an
account with a full bucket is dropped at once: a new account would be equal. So a client that changes its name all
the time takes no room from other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import attrs

from odradek.data_plane.quotas.address_rates import AddressRates
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.metadata_quorum.quotas.quota_levels import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    Holding,
    holding_quota,
)
from odradek.metadata_quorum.quotas.token_bucket import TokenBucket
from odradek.named_states import reached
from odradek.serving.steps import Work

__all__ = ["ACCOUNTS_MAX", "Account", "ClientQuotas", "ClientShare", "QuotaSettings"]

T = TypeVar("T")

ACCOUNTS_MAX = 10_000
IDLE_SECONDS_MAX = 3600.0
"""Kafka's: a sensor that is idle for an hour is dropped."""
SWEEP_SECONDS = 60.0
SWEEP_SECONDS_MIN = 1.0
"""The shortest time between two searches for accounts to drop."""
GATHERED_SECONDS_MAX = 0.001
"""Turns are charged together until they have taken this much processor time."""
CHARGED_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
_OTHERS = ("", "<others>")


@attrs.frozen
class QuotaSettings:
    """The windows over which quotas are measured."""

    windows: int = setting("quota.window.num")
    window_seconds: int = setting("quota.window.size.seconds")

    @property
    def burst_seconds(self) -> float:
        """The time whose quota a client that was idle may use at once. Kafka counts all windows but the present one."""
        return float(max(1, self.windows - 1) * self.window_seconds)


class Account(TokenBucket):
    """One quota, and the usage of all clients that share it. Units are bytes, or seconds of processor time."""

    __slots__ = (
        "_gathered",
        "change",
        "found_at",
        "has_ended",
        "holding",
        "is_overflow",
        "key",
        "throttled_seconds",
    )

    def __init__(self, key: str, holding: Holding, burst_seconds: float, now: float, change: int) -> None:
        rate = _rate(key, holding.value)
        super().__init__(rate, rate * burst_seconds, now)
        self.key = key
        self.holding = holding
        self.change = change
        """The number of the quota change that the account was last checked against."""
        self.is_overflow = False
        self.has_ended = False
        """True once the quota is gone. Connections that have not asked for a new share may still have the account."""
        self.throttled_seconds = 0.0
        """The sum of the waits that clients got."""
        self.found_at = now
        """The last time at which a connection asked for this account."""
        self._gathered = 0.0
        """Seconds of processor time that turns took, and that are not charged yet."""

    def judge(self, holding: Holding, burst_seconds: float, now: float, change: int) -> None:
        """Use this quota from now on."""
        self.holding, self.change = holding, change
        rate = _rate(self.key, holding.value)
        if rate != self.rate:  # a change of another entity must not shorten the debt
            self.set_rate(rate, rate * burst_seconds, now)

    def charge_turn(self, seconds: float, now: float) -> None:
        """Charge the processor time of one turn, or keep it for the next one.

        Thousands of turns per second may take some microseconds each. They are charged together once they add up to
        the quota of a millisecond.
        """
        seconds += self._gathered
        if seconds < GATHERED_SECONDS_MAX and seconds < self.rate * GATHERED_SECONDS_MAX:
            self._gathered = seconds
            return
        self._gathered = 0.0
        self.charge(seconds, now)

    def is_idle(self, now: float) -> bool:
        """True if the account has long been unused and is out of debt."""
        used_at = max(self.found_at, self.charged_at)
        return now - used_at > IDLE_SECONDS_MAX and not self.wait_seconds(now)


class ClientShare:
    """The accounts of one client, which its connection keeps. An account is None if no quota applies."""

    __slots__ = (
        "client_id",
        "fetch",
        "generation",
        "is_exempt",
        "principal",
        "produce",
        "request",
        "window_seconds",
    )

    def __init__(
        self,
        principal: str,
        client_id: str | None,
        generation: int,
        accounts: tuple[Account | None, Account | None, Account | None],
        window_seconds: float,
    ) -> None:
        self.principal = principal
        self.client_id = client_id
        self.generation = generation
        self.produce, self.fetch, self.request = accounts
        self.window_seconds = window_seconds
        self.is_exempt = False
        """True for a node of the cluster, to which no quota applies."""

    @classmethod
    def exempt(cls, principal: str, client_id: str | None, generation: int) -> ClientShare:
        """Make the share of a node, or of a request that only nodes send. With the default `generation`, the share
        is never outdated.
        """
        share = cls(principal, client_id, generation, (None, None, None), 0.0)
        share.is_exempt = True
        return share

    def note_wait(self, is_produce: bool, is_fetch: bool, seconds: float) -> None:
        """Count a client's wait, in the account that causes it."""
        account = (self.produce if is_produce else self.fetch if is_fetch else None) or self.request
        if account is not None:
            account.throttled_seconds += seconds

    @property
    def fetch_bytes_max(self) -> int | None:
        """The most bytes of one fetch; None if no quota applies."""
        if self.fetch is None or self.fetch.has_ended:
            return None
        return max(1, int(self.fetch.rate * self.window_seconds))

    def request_wait(self, now: float) -> float:
        """Compute the seconds to wait for earlier processor time; a window at most."""
        seconds = 0.0 if self.request is None else self.request.wait_seconds(now)
        return seconds if seconds < self.window_seconds else self.window_seconds


class ClientQuotas:
    """All accounts of a node."""

    def __init__(self, settings: QuotaSettings, accounts_max: int = ACCOUNTS_MAX) -> None:
        self.settings = settings
        self.generation = 0
        """Grows when quotas change, or accounts are dropped."""
        self.is_charging = False
        """True if there is any quota for users or client ids."""
        self.charges_requests = False
        """True if any quota limits processor time."""
        self.exempt_requests = 0
        self.exempt_bytes = 0
        self.addresses = AddressRates(settings.burst_seconds)
        """The quotas of addresses, which are about connections alone."""
        self.listeners: list[Callable[[], None]] = []
        """Callbacks for changes of the quotas."""
        self._accounts_max = accounts_max
        self._quotas: Mapping[tuple[Entity, str], float] = {}
        self._values: dict[tuple[str, float], int] = {}
        """The number of quotas with each pair of key and value."""
        self._keys: dict[str, int] = {}
        """The number of quotas of users and client ids for each key."""
        self._changes = 0
        """The number of times that the quotas have changed."""
        self._accounts: dict[tuple[str, tuple[str, str]], Account] = {}
        self._sweep_at = 0.0
        self._make_room_at = 0.0

    def apply(
        self,
        quotas: Mapping[tuple[Entity, str], float],
        changed: Iterable[tuple[Entity, str]] | None = None,
    ) -> None:
        """Use the quotas of a newer image. `changed` names the changed quotas (None: compare all).

        Call `judge_accounts` afterwards.
        """
        before, self._quotas = self._quotas, quotas
        for entity, key in dict.fromkeys([*before, *quotas]) if changed is None else changed:
            old, new = before.get((entity, key)), quotas.get((entity, key))
            if old == new:
                continue
            is_of_clients = not entity or entity[0][0] != IP
            for value, step in ((old, -1), (new, 1)):
                if value is not None:
                    _count(self._values, (key, value), step)
                    if is_of_clients:
                        _count(self._keys, key, step)
            if is_of_clients:
                continue
            if key == CONNECTION_CREATION_RATE:
                self.addresses.set_quota(entity[0][1], new)
        self._changes += 1
        self.generation += 1
        self.charges_requests = REQUEST_PERCENTAGE in self._keys
        self.is_charging = bool(self._keys)
        for listener in self.listeners:
            listener()

    def judge_accounts(self, monotonic: Callable[[], float]) -> Work[None]:
        """Give the accounts their new quotas, or remove accounts; in slices, because there may be thousands.

        An account whose turn has not come is updated as soon as a client uses it.
        """
        for at, account in list(self._accounts.items()):
            yield 1
            if account.change == self._changes or self._accounts.get(at) is not account:
                continue
            holding = self._holding_of(account)
            if holding is None:
                self._accounts.pop(at).has_ended = True
            else:
                account.judge(holding, self.settings.burst_seconds, monotonic(), self._changes)

    def _holding_of(self, account: Account) -> Holding | None:
        """Find the quota that now applies to an account; None if its clients now have another account, or none.

        If the quota's level has changed, the clients of an account may have changed, too. They find their account
        again, or get a new account.
        """
        if account.is_overflow:
            reached("quotas.account_shared")
            # Shared by all clients that have a quota of this value, but got no account because there was no
            # room.
            return account.holding if (account.key, account.holding.value) in self._values else None
        holding = holding_quota(self._quotas, account.key, *account.holding.sharers)
        return None if holding is None or holding.sharers != account.holding.sharers else holding

    def share_of(self, principal: str, client_id: str | None, now: float) -> ClientShare:
        """Get the accounts of a client: `principal` as `type:name`."""
        self._sweep(now)
        user = principal.partition(":")[2]
        produce, fetch, request = (self._account(key, user, client_id or "", now) for key in CHARGED_KEYS)
        return ClientShare(
            principal, client_id, self.generation, (produce, fetch, request), self.settings.window_seconds
        )

    def note_exempt(self, size: int) -> None:
        """Count a request of a node by its bytes."""
        self.exempt_requests += 1
        self.exempt_bytes += size

    def holding(self, key: str, user: str, client_id: str) -> Holding | None:
        """Find the quota that holds for a client now."""
        return holding_quota(self._quotas, key, user, client_id)

    def _account(self, key: str, user: str, client_id: str, now: float) -> Account | None:
        holding = holding_quota(self._quotas, key, user, client_id)
        if holding is None:
            return None
        at = (key, holding.sharers)
        account = self._accounts.get(at)
        if account is None and len(self._accounts) >= self._accounts_max:
            self._make_room(now)
        if account is None and len(self._accounts) >= self._accounts_max:
            at = (key, (_OTHERS[0], f"{_OTHERS[1]} of {holding.value:.17g}"))
            account = self._accounts.get(at)
        if account is None:
            account = Account(key, holding, self.settings.burst_seconds, now, self._changes)
            account.is_overflow = at[1] != holding.sharers
            self._accounts[at] = account
        elif account.change != self._changes:
            account.judge(holding, self.settings.burst_seconds, now, self._changes)
        account.found_at = now
        return account

    def _sweep(self, now: float) -> None:
        """Forget idle accounts, from time to time."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        self._drop([at for at, account in self._accounts.items() if account.is_idle(now)])

    def _make_room(self, now: float) -> None:
        """Forget accounts that are as good as new, once a second at most."""
        if now < self._make_room_at:
            return
        self._make_room_at = now + SWEEP_SECONDS_MIN
        # Do not drop accounts that were found just now: they belong to the share that is being made.
        self._drop(
            [
                at
                for at, account in self._accounts.items()
                if account.found_at < now and account.has(account.burst, now)
            ]
        )

    def _drop(self, accounts: list[tuple[str, tuple[str, str]]]) -> None:
        for at in accounts:
            del self._accounts[at]
        if accounts:
            # Connections may still hold such an account.
            self.generation += 1

    def accounts(self) -> Iterator[tuple[tuple[str, str], Account]]:
        """Yield user and client id of the sharers, and their account."""
        for (_, sharers), account in self._accounts.items():
            yield sharers, account

    def statistics(self) -> dict[str, float]:
        """Count open accounts, and requests and bytes of nodes, for which no quota holds."""
        return {
            "accounts": len(self._accounts),
            "exempt_requests": self.exempt_requests,
            "exempt_bytes": self.exempt_bytes,
            "refused_connections": self.addresses.refused,
        }


def _rate(key: str, value: float) -> float:
    """Convert to units per second. A request percentage of 100 is a second of processor time per second."""
    return value / 100 if key == REQUEST_PERCENTAGE else value


def _count(counts: dict[T, int], key: T, step: int) -> None:
    """Increase or decrease a count; a count of zero is removed."""
    left = counts.get(key, 0) + step
    if left:
        counts[key] = left
    else:
        del counts[key]
