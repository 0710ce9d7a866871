"""Limits for the bytes of the audit log that one principal, one address, and all unauthenticated clients may cause.
PURE.

A principal, an address, and all unauthenticated clients together each have one account per event. An account is a token
bucket with a burst of bytes and a rate of bytes per second. A line is written if all accounts that pay for it have
bytes left. Otherwise it is only counted, and a line with `"further": true` reports the count: at once for the first
time, then once a minute.

A principal's first line of each kind (for example an API and operation) is always written. So a flood of one kind
does not hide other attempts of the same principal.

For a client that has not authenticated (or is `User:ANONYMOUS`), two accounts pay: the account of its
address, and the account of all such clients. So many addresses together are limited, too.

The number of accounts is limited. If there are too many, accounts that are full again are forgotten. If none is full,
all new addresses share one account, and so do all new principals.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.security.audit.audit_lines import (
    CHANGED,
    DENIED,
    LOGGED_IN,
    LOGIN_FAILED,
    Payer,
    PreparedLine,
    Value,
)
from odradek.serving.contract import ANONYMOUS

__all__ = [
    "ACCOUNTS_MAX",
    "ALLOWANCES",
    "KINDS_MAX",
    "REPORT_SECONDS",
    "STRANGERS",
    "Allowance",
    "Budgets",
    "Further",
]

ACCOUNTS_MAX = 2_000
"""The maximum number of accounts of addresses, and of principals, for one event."""
KINDS_MAX = 250
"""The maximum number of kinds of lines that one account remembers."""
REPORT_SECONDS = 60.0
"""Seconds between two reports of how many lines of an account were only counted, not written."""
FORGET_SECONDS = 1.0
"""Seconds between two searches for accounts that are full again and can be forgotten."""


@attrs.frozen
class Allowance:
    """The size of an account: the bytes when it is full, and the bytes per second by which it fills."""

    bytes_at_once: int
    bytes_per_second: int


ALLOWANCES = {
    DENIED: Allowance(256 << 10, 1 << 10),
    LOGIN_FAILED: Allowance(256 << 10, 1 << 10),
    LOGGED_IN: Allowance(256 << 10, 1 << 10),
    CHANGED: Allowance(4 << 20, 2 << 10),
}
"""The size of a principal's or an address's account, by event."""
STRANGERS = Allowance(1 << 20, 2 << 10)
CHANGES_OF_STRANGERS = Allowance(4 << 20, 2 << 10)


@attrs.frozen
class Further:
    """A report of one account's lines that were only counted."""

    event: str
    principal: str | None
    address: str | None
    count: int


@attrs.define
class _Account:
    event: str
    principal: str | None
    address: str | None
    allowance: Allowance
    left: float
    as_of: float
    kinds: set[tuple[Value, ...]] = attrs.field(factory=set)
    further: int = 0
    report_at: float = float("-inf")

    def fill(self, now: float) -> float:
        """Refill the account up to `now`. Return the bytes that are left."""
        allowance = self.allowance
        left = self.left + (now - self.as_of) * allowance.bytes_per_second
        self.left = min(left, float(allowance.bytes_at_once))
        self.as_of = now
        return self.left

    def may_be_forgotten(self, now: float) -> bool:
        return not self.further and self.report_at <= now and self.fill(now) >= self.allowance.bytes_at_once


class _Accounts:
    """The accounts of principals, or of addresses, by event and name."""

    def __init__(self, by_name: str) -> None:
        self._by_name = by_name
        self._of_event: dict[str, dict[str, _Account]] = {}
        self._shared: dict[str, _Account] = {}
        self._forget_at = float("-inf")

    def get(self, event: str, name: str, allowance: Allowance, now: float) -> _Account:
        accounts = self._of_event.setdefault(event, {})
        account = accounts.get(name)
        if account is not None:
            return account
        if len(accounts) >= ACCOUNTS_MAX and now >= self._forget_at:
            self._forget_at = now + FORGET_SECONDS
            for each in [key for key, value in accounts.items() if value.may_be_forgotten(now)]:
                del accounts[each]
        full = float(allowance.bytes_at_once)
        if len(accounts) >= ACCOUNTS_MAX:
            return self._shared.setdefault(event, _Account(event, None, None, allowance, full, now))
        account = accounts[name] = _Account(event, None, None, allowance, full, now)
        setattr(account, self._by_name, name)
        return account

    def size(self) -> int:
        return sum(map(len, self._of_event.values()))


class Budgets:
    """The accounts of all principals and addresses that cause lines in the audit log."""

    def __init__(self) -> None:
        self._principals = _Accounts("principal")
        self._addresses = _Accounts("address")
        self._strangers: dict[str, _Account] = {}
        self._unreported: list[_Account] = []
        """Accounts with lines that were only counted and not reported yet."""
        self.further_total = 0
        """The number of lines that were only counted, since the start."""

    def admits(self, line: PreparedLine, count: int, now: float) -> bool:
        """Decide whether a line is written, and charge it to the accounts that pay. Return false if it is only
        counted.
        """
        payer = line.payer
        allowance = None if payer is None else ALLOWANCES.get(line.event)
        if payer is None or allowance is None:
            return True
        accounts = list(self._accounts(line.event, payer, allowance, now))
        empty = next((each for each in accounts if each.fill(now) <= 0), None)
        if empty is not None and not self._is_first(accounts[0], payer):
            self._count(empty, count)
            return False
        for account in accounts:
            account.left -= line.size
        if accounts[0].principal is not None and len(accounts[0].kinds) < KINDS_MAX:
            accounts[0].kinds.add(payer.kind)
        return True

    def _accounts(self, event: str, payer: Payer, allowance: Allowance, now: float) -> Iterator[_Account]:
        """Yield the accounts that pay for a line; a known principal's own account is first."""
        is_known = payer.principal not in (None, ANONYMOUS)
        if is_known:
            yield self._principals.get(event, payer.principal or "", allowance, now)
        network = payer.network
        if network is not None:
            yield self._addresses.get(event, network, allowance, now)
        if not is_known:
            all_of_them = CHANGES_OF_STRANGERS if event == CHANGED else STRANGERS
            full = float(all_of_them.bytes_at_once)
            yield self._strangers.setdefault(event, _Account(event, None, None, all_of_them, full, now))

    @staticmethod
    def _is_first(account: _Account, payer: Payer) -> bool:
        """True if this is the principal's first line of its kind, which is written even if the account is empty. At
        most `KINDS_MAX` kinds count, so such lines overdraw an account by a limited number of bytes.
        """
        return (
            account.principal is not None
            and payer.kind not in account.kinds
            and len(account.kinds) < KINDS_MAX
        )

    def _count(self, account: _Account, count: int) -> None:
        if not account.further:
            self._unreported.append(account)
        account.further += count
        self.further_total += count

    def next_report_at(self) -> float:
        """Return the time at which `take_further` has counts to report; infinite if nothing was counted."""
        return min((each.report_at for each in self._unreported), default=float("inf"))

    def take_further(self, now: float, *, is_last: bool = False) -> list[Further]:
        """Return the counts that are due for a report, and reset them; with `is_last`, return all."""
        due = [each for each in self._unreported if is_last or each.report_at <= now]
        reports = []
        for account in due:
            reports.append(Further(account.event, account.principal, account.address, account.further))
            account.further = 0
            account.report_at = now + REPORT_SECONDS
        self._unreported = [each for each in self._unreported if each.further]
        return reports

    def size(self) -> int:
        """Count the remembered accounts of principals and addresses."""
        return self._principals.size() + self._addresses.size()
