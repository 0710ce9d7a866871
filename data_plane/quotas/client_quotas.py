"""The quotas of a node's clients: what each connection is charged, and how long it must wait. PURE.

Theory of operation
-------------------
`ClientQuotas` takes the quotas from the metadata image. Connections call it only while any quota exists.

Each connection keeps a `ClientShare`: the accounts to which its present principal and client id are charged.
The connection gets a new share when the client id changes, or when `generation` has grown. An `Account`
belongs to all clients that share a quota (`quota_levels`), on all listeners. An account has a token bucket,
and counts the clients' usage and waits.

* A **produce** request is charged with its bytes on arrival; the answer contains the time to wait.
* A **fetch** is charged with the bytes of its answer. A client in debt gets an empty answer (KIP-219). One
  fetch returns at most the bytes that the quota allows in `quota.window.size.seconds`.
* **Every request** is charged with its processor time. 100 % is one core. The client waits for one window at
  most, so that sessions do not expire.

A client in debt is muted. No request is read from its connection until the wait is over.

Clients may use any number of ids, so there are at most `ACCOUNTS_MAX` accounts. Further clients with a quota
of the same kind and value share one account. An account that was idle for `IDLE_SECONDS_MAX` is dropped. If
there are too many accounts, accounts with a full bucket are dropped at once. Such an account equals a new
one. So a client that changes its id all the time takes no accounts from other clients.
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
"""The time after which an idle account is dropped, in seconds. Kafka drops idle sensors after the same time.
"""
SWEEP_SECONDS = 60.0
SWEEP_SECONDS_MIN = 1.0
"""The shortest time between two searches for accounts to drop, in seconds."""
GATHERED_SECONDS_MAX = 0.001
"""The sum of processor time, in seconds, at which the short turns of an account are charged together. Until
then they are only added up.
"""
CHARGED_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
_OTHERS = ("", "<others>")


@attrs.frozen
class QuotaSettings:
    """The time windows over which quotas are measured: their number and their length."""

    windows: int = setting("quota.window.num")
    window_seconds: int = setting("quota.window.size.seconds")

    @property
    def burst_seconds(self) -> float:
        """The number of seconds whose quota a client may use at once after it was idle. It is the length of
        all windows except the present one, as in Kafka.
        """
        return float(max(1, self.windows - 1) * self.window_seconds)


class Account(TokenBucket):
    """The account of one quota: a token bucket, and the usage of all clients that share it.

    The unit of the account is a byte, or a second of processor time.
    """

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
        """The value of `ClientQuotas._changes` when the account was last compared with the quotas."""
        self.is_overflow = False
        self.has_ended = False
        """True once the quota is removed. A connection may still have the account until it asks for a new
        share.
        """
        self.throttled_seconds = 0.0
        """The sum of all waits that this account has caused, in seconds."""
        self.found_at = now
        """The last time at which a connection looked up this account, in monotonic seconds."""
        self._gathered = 0.0
        """Processor time, in seconds, that turns have used and that is still to be charged."""

    def judge(self, holding: Holding, burst_seconds: float, now: float, change: int) -> None:
        """Apply a changed quota to this account. `change` is the number of the change."""
        self.holding, self.change = holding, change
        rate = _rate(self.key, holding.value)
        # If the rate is the same, the quota of another entity has changed. Such a change must not shorten the
        # debt.
        if rate != self.rate:
            self.set_rate(rate, rate * burst_seconds, now)

    def charge_turn(self, seconds: float, now: float) -> None:
        """Charge the processor time of one turn, or add it to the time that is charged later.

        There may be thousands of turns per second, of some microseconds each. Turns are charged together,
        once they add up to a millisecond, or to the quota of a millisecond if this is less.
        """
        seconds += self._gathered
        if seconds < GATHERED_SECONDS_MAX and seconds < self.rate * GATHERED_SECONDS_MAX:
            self._gathered = seconds
            return
        self._gathered = 0.0
        self.charge(seconds, now)

    def is_idle(self, now: float) -> bool:
        """True if the account is out of debt and its last use was more than `IDLE_SECONDS_MAX` ago."""
        used_at = max(self.found_at, self.charged_at)
        return now - used_at > IDLE_SECONDS_MAX and not self.wait_seconds(now)


class ClientShare:
    """The accounts of one client, which its connection keeps. An account is None if no such quota applies."""

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
        """True for a node of the cluster, to which quotas do not apply."""

    @classmethod
    def exempt(cls, principal: str, client_id: str | None, generation: int) -> ClientShare:
        """Make the share of a node of the cluster, or of a request that only nodes send. This share is charged
        to no account.
        """
        share = cls(principal, client_id, generation, (None, None, None), 0.0)
        share.is_exempt = True
        return share

    def note_wait(self, is_produce: bool, is_fetch: bool, seconds: float) -> None:
        """Add a client's wait to the account that causes it."""
        account = (self.produce if is_produce else self.fetch if is_fetch else None) or self.request
        if account is not None:
            account.throttled_seconds += seconds

    @property
    def fetch_bytes_max(self) -> int | None:
        """The most bytes that one fetch may return; None if no quota applies."""
        if self.fetch is None or self.fetch.has_ended:
            return None
        return max(1, int(self.fetch.rate * self.window_seconds))

    def request_wait(self, now: float) -> float:
        """Return how many seconds the client must wait because of the processor time used before.

        It is one window at most.
        """
        seconds = 0.0 if self.request is None else self.request.wait_seconds(now)
        return seconds if seconds < self.window_seconds else self.window_seconds


class ClientQuotas:
    """The accounts of all clients of a node, and the quotas from the metadata."""

    def __init__(self, settings: QuotaSettings, accounts_max: int = ACCOUNTS_MAX) -> None:
        self.settings = settings
        self.generation = 0
        """A number that grows when quotas change or accounts are dropped. Connections with an older share
        then ask for a new one.
        """
        self.is_charging = False
        """True if there is any quota for users or client ids."""
        self.charges_requests = False
        """True if any quota limits processor time."""
        self.exempt_requests = 0
        self.exempt_bytes = 0
        self.addresses = AddressRates(settings.burst_seconds)
        """The quotas of client addresses, which limit only the rate of new connections."""
        self.listeners: list[Callable[[], None]] = []
        """Functions that are called after each change of the quotas."""
        self._accounts_max = accounts_max
        self._quotas: Mapping[tuple[Entity, str], float] = {}
        self._values: dict[tuple[str, float], int] = {}
        """For each pair of quota key and value, the number of quotas that have it."""
        self._keys: dict[str, int] = {}
        """For each quota key, the number of quotas for users and client ids."""
        self._changes = 0
        """The number of changes of the quotas so far."""
        self._accounts: dict[tuple[str, tuple[str, str]], Account] = {}
        self._sweep_at = 0.0
        self._make_room_at = 0.0

    def apply(
        self,
        quotas: Mapping[tuple[Entity, str], float],
        changed: Iterable[tuple[Entity, str]] | None = None,
    ) -> None:
        """Take over the quotas of a newer metadata image. `changed` names the changed quotas; None means that
        all are compared.

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
        """Update all accounts after a change of the quotas, and remove those whose quota is gone. The work is
        done in slices, because there may be thousands of accounts.

        If a client uses an account before this work reaches the account, the account is updated at its use.
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
        """Return the quota that now applies to an account; None if its clients now need another account, or
        no account at all.

        A change of the quota's level may also change which clients share an account. These clients then look
        up their accounts again.
        """
        if account.is_overflow:
            reached("quotas.account_shared")
            # This account was made when there was no room for more. All clients with a quota of this value
            # share it.
            return account.holding if (account.key, account.holding.value) in self._values else None
        holding = holding_quota(self._quotas, account.key, *account.holding.sharers)
        return None if holding is None or holding.sharers != account.holding.sharers else holding

    def share_of(self, principal: str, client_id: str | None, now: float) -> ClientShare:
        """Return the share of a client.

        Accounts are created as needed. `principal` has the form `type:name`.
        """
        self._sweep(now)
        user = principal.partition(":")[2]
        produce, fetch, request = (self._account(key, user, client_id or "", now) for key in CHARGED_KEYS)
        return ClientShare(
            principal, client_id, self.generation, (produce, fetch, request), self.settings.window_seconds
        )

    def note_exempt(self, size: int) -> None:
        """Count a request of a node, and its bytes."""
        self.exempt_requests += 1
        self.exempt_bytes += size

    def holding(self, key: str, user: str, client_id: str) -> Holding | None:
        """Return the quota that now applies to a client; None if there is none."""
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
        """Drop idle accounts, at most once in `SWEEP_SECONDS`."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        self._drop([at for at, account in self._accounts.items() if account.is_idle(now)])

    def _make_room(self, now: float) -> None:
        """Drop accounts with a full bucket, at most once in `SWEEP_SECONDS_MIN`.

        New accounts would be equal to them.
        """
        if now < self._make_room_at:
            return
        self._make_room_at = now + SWEEP_SECONDS_MIN
        # An account that was looked up just now belongs to the share that is being made, so keep it.
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
            # Connections may still have a dropped account, so let them ask for new shares.
            self.generation += 1

    def accounts(self) -> Iterator[tuple[tuple[str, str], Account]]:
        """Yield each account, with the user and the client id that share it."""
        for (_, sharers), account in self._accounts.items():
            yield sharers, account

    def statistics(self) -> dict[str, float]:
        """Return figures for metrics: accounts, requests and bytes of nodes (which have no quotas), and
        refused connections.
        """
        return {
            "accounts": len(self._accounts),
            "exempt_requests": self.exempt_requests,
            "exempt_bytes": self.exempt_bytes,
            "refused_connections": self.addresses.refused,
        }


def _rate(key: str, value: float) -> float:
    """Convert a quota's value to units per second.

    A request percentage of 100 becomes one second of processor time per second.
    """
    return value / 100 if key == REQUEST_PERCENTAGE else value


def _count(counts: dict[T, int], key: T, step: int) -> None:
    """Add `step` to a count. A count of zero is removed."""
    left = counts.get(key, 0) + step
    if left:
        counts[key] = left
    else:
        del counts[key]
