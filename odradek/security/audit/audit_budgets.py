"""Bytes of the audit log that one principal, one address, and all strangers together may write. PURE.

Each of them has an account for each event: a burst of bytes at once, and a rate of bytes a second from then on. A
line is written while all of its payers have something left. Otherwise it is only counted, and a line with
`"further": true` reports the count: at once for the first time, then once a minute.

The first line of a kind (an API and operation, say) is written for a principal in any case. So a flood of one kind does
not hide that its author has tried something else.

A client that has not authenticated (`User:ANONYMOUS`, too) pays by the address, and from the account of all strangers.
Therefore many addresses together write no faster than that account allows.

Accounts are bounded. A full account is forgotten when there are too many. When none of them is full, all new
addresses share one, and so do all new principals.
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
"""Accounts of one sort: addresses or principals, for one event."""
KINDS_MAX = 250
"""Kinds of lines of one account that are remembered."""
REPORT_SECONDS = 60.0
"""Time between two lines that report how many of an account's lines were only counted."""
FORGET_SECONDS = 1.0
"""Time between two searches for accounts that are full again."""


@attrs.frozen
class Allowance:
    """The size of a full account, and the pace at which it fills."""

    bytes_at_once: int
    bytes_per_second: int


ALLOWANCES = {
    DENIED: Allowance(256 << 10, 1 << 10),
    LOGIN_FAILED: Allowance(256 << 10, 1 << 10),
    LOGGED_IN: Allowance(256 << 10, 1 << 10),
    CHANGED: Allowance(4 << 20, 2 << 10),
}
"""The allowances of one principal, and of one address."""
STRANGERS = Allowance(1 << 20, 2 << 10)
CHANGES_OF_STRANGERS = Allowance(4 << 20, 2 << 10)


@attrs.frozen
class Further:
    """Lines of one account that were only counted."""

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
        """Refill the account up to now; returns the bytes that are left."""
        allowance = self.allowance
        left = self.left + (now - self.as_of) * allowance.bytes_per_second
        self.left = min(left, float(allowance.bytes_at_once))
        self.as_of = now
        return self.left

    def may_be_forgotten(self, now: float) -> bool:
        return not self.further and self.report_at <= now and self.fill(now) >= self.allowance.bytes_at_once


class _Accounts:
    """Accounts of one sort, by event and name."""

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
    """The accounts of all principals and addresses that cause lines."""

    def __init__(self) -> None:
        self._principals = _Accounts("principal")
        self._addresses = _Accounts("address")
        self._strangers: dict[str, _Account] = {}
        self._unreported: list[_Account] = []
        """Accounts with lines that were counted and not yet reported."""
        self.further_total = 0
        """Lines that were only counted, since the start."""

    def admits(self, line: PreparedLine, count: int, now: float) -> bool:
        """Charge the line to its payers; false if it is only counted."""
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
        """True if the principal has not shown this kind of line before. The limit on kinds bounds how far an
        account is overdrawn.
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
        """Take the counts that are due for a report; with `is_last`, all of them."""
        due = [each for each in self._unreported if is_last or each.report_at <= now]
        reports = []
        for account in due:
            reports.append(Further(account.event, account.principal, account.address, account.further))
            account.further = 0
            account.report_at = now + REPORT_SECONDS
        self._unreported = [each for each in self._unreported if each.further]
        return reports

    def size(self) -> int:
        """Count the accounts of principals and addresses that are remembered."""
        return self._principals.size() + self._addresses.size()
