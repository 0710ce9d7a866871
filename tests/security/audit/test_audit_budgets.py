"""The audit log under load: byte limits for each principal and address, two sets of files, counts of omitted lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.env.real import RealEnv
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings, Rights
from odradek.security.acls.rules import Operation, ResourceType
from odradek.security.audit.audit_budgets import (
    ACCOUNTS_MAX,
    ALLOWANCES,
    KINDS_MAX,
    REPORT_SECONDS,
    STRANGERS,
    Budgets,
)
from odradek.security.audit.audit_lines import OVERHEAD_BYTES, Payer, prepared
from odradek.security.audit.audit_log import AuditLog, AuditSettings
from odradek.security.audit.auditor import Auditor
from odradek.wire.api_keys import ApiKey
from testkit.by_hand import ManualClock

ALICE = "User:alice"
EMOJI = "\U0001f600"
LINE_BYTES_MAX = 16 << 10
APIS = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.DELETE_TOPICS)


class HeldEnv:
    """The real environment, except for a clock that the test sets."""

    def __init__(self) -> None:
        self._real = RealEnv()
        self.clock = ManualClock(1_000_000)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Place:
    """An audit log with a clock that the test sets, and the auditor that writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        env = HeldEnv()
        self.clock = env.clock
        # This audit log reports no trouble to anybody.
        self.log = AuditLog(env, None, env.open_dir(str(path), create=True), AuditSettings())
        self.auditor = Auditor(1)
        self.auditor.lines = self.log
        self.authorizer = Authorizer(AuthorizerSettings())
        self.authorizer.auditor = self.auditor
        self.authorizer.apply(AclIndex())

    def deny(
        self, name: str, principal: str = ALICE, host: str = "10.0.0.1", *, api: int = ApiKey.METADATA
    ) -> None:
        """Refuse a principal the description of a topic."""
        rights = Rights(self.authorizer, principal, host, listener="SASL")
        assert not rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
        rights.log_denials(api)

    def fail_login(self, claimed: str, host: str) -> None:
        self.auditor.login_failed("SASL", host, claimed, "PLAIN", "wrong password")

    def change(
        self, offset: int, principal: str = ALICE, client_id: str = "c", api: str = "CreateTopics"
    ) -> None:
        self.auditor.changed(
            *(principal, "10.0.0.1", client_id, api),
            epoch=3,
            first_offset=offset,
            last_offset=offset,
            is_committed=True,
        )

    def write(self) -> None:
        """Write the waiting lines."""
        taken = self.log._take()
        assert self.log._write(taken)

    def size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_refusals_displace_no_changes_and_logins(place: Place) -> None:
    """Thousands of denials and failed logins come. Their lines go to other files, so that the lines of changes and
    logins stay."""
    place.auditor.logged_in("SASL", "10.0.0.1", ALICE, "PLAIN")
    place.change(7)
    for number in range(3000):
        place.deny(f"{number}" + EMOJI * 900, f"User:{number % 50}", f"10.0.1.{number % 100}")
        place.fail_login(f"{number}" + EMOJI * 900, f"10.0.2.{number % 100}")
    place.write()
    assert [line["event"] for line in place.lines("audit.log")] == ["login", "metadata.changed"]
    assert {line["event"] for line in place.lines("audit-refusals.log")} == {"denied", "login.failed"}


def test_a_principal_has_so_many_bytes_from_all_addresses(place: Place) -> None:
    """A principal has a limit of bytes for all its addresses. Further lines are counted in one line with its name."""
    for number in range(5000):
        place.deny(f"{number}" + EMOJI * 900, host=f"10.0.{number % 200}.1")
    place.deny("t", "User:bob", "10.9.0.1")
    place.write()
    assert place.size("audit-refusals.log") <= ALLOWANCES["denied"].bytes_at_once + LINE_BYTES_MAX
    found = place.lines("audit-refusals.log")
    assert [line["resource"] for line in found if line["principal"] == "User:bob"] == ["t"]
    (rest,) = (line for line in found if line.get("further"))
    assert (rest["event"], rest["principal"]) == ("denied", ALICE)
    assert sum(line.get("count", 1) for line in found if line["principal"] == ALICE) == 5000


def test_an_address_has_so_many_bytes_for_all_its_names(place: Place) -> None:
    """Many principals of one address share a limit of bytes. Further lines are counted in one line with the address."""
    for number in range(5000):
        place.deny("t" * 200, f"User:{number % 1000}", api=APIS[number // 1000])
    place.write()
    found = place.lines("audit-refusals.log")
    assert sum(line.get("count", 1) for line in found) == 5000
    # The first line of each kind of each principal is written. All others are counted for the address.
    firsts = [line for line in found if not line.get("further")]
    assert len({(line["principal"], line["api"]) for line in firsts}) == len(firsts) == 5000
    for number in range(1000):
        place.deny("u" * 200, f"User:{number}", api=APIS[0])
    place.write()
    (rest,) = (line for line in place.lines("audit-refusals.log") if line.get("further"))
    assert (rest["address"], rest["count"]) == ("10.0.0.1", 1000)


def test_a_network_of_ipv6_counts_as_one_address(place: Place) -> None:
    """All addresses of an IPv6 network of 64 bits share a limit, since one host may use them all."""
    for number in range(3000):
        place.fail_login(f"{number}" + "x" * 240, f"2001:db8::{number:x}")
    place.write()
    assert place.size("audit-refusals.log") <= ALLOWANCES["login.failed"].bytes_at_once + LINE_BYTES_MAX
    (rest,) = (line for line in place.lines("audit-refusals.log") if line.get("further"))
    assert rest["address"] == "2001:db8::/64"
    assert Payer(None, "fe80::1%eth0").network == "fe80::/64"
    assert Payer(None, "no address: at all").network == "no address: at all"


def test_strangers_from_everywhere_share_what_they_have(place: Place) -> None:
    """Failed logins come from a thousand addresses. All strangers share a limit of bytes, and each login is counted."""
    for number in range(10_000):
        place.fail_login(f"{number}" + EMOJI * 250, f"10.1.{number % 1000 // 250}.{number % 250}")
    place.write()
    found = place.lines("audit-refusals.log")
    assert place.size("audit-refusals.log") <= STRANGERS.bytes_at_once + LINE_BYTES_MAX
    assert sum(line.get("count", 1) for line in found) == 10_000


def test_who_is_anonymous_is_a_stranger(place: Place) -> None:
    """Denials of User:ANONYMOUS are counted as those of strangers, since everybody has this name."""
    for number in range(6000):
        place.deny(f"{number}" + "x" * 200, "User:ANONYMOUS", f"10.1.{number % 500 // 250}.{number % 250}")
    place.write()
    assert place.size("audit-refusals.log") <= STRANGERS.bytes_at_once + LINE_BYTES_MAX
    (rest,) = (line for line in place.lines("audit-refusals.log") if line.get("further"))
    assert rest["address"] is None


def test_changes_are_bounded_too(place: Place) -> None:
    """Changes have the same limits, since every client may create delegation tokens."""
    for number in range(20_000):
        place.change(number, client_id=EMOJI * 500, api="CreateDelegationToken")
    place.change(20_000, "User:bob")
    place.write()
    assert place.size("audit.log") <= ALLOWANCES["metadata.changed"].bytes_at_once + 2 * LINE_BYTES_MAX
    found = place.lines("audit.log")
    (rest,) = (line for line in found if line.get("further"))
    assert (rest["event"], rest["principal"]) == ("metadata.changed", ALICE)
    assert [line["first_offset"] for line in found if line["principal"] == "User:bob"] == [20_000]
    assert place.log.statistics()["lines_further"] == rest["count"]


def test_logins_are_bounded_too(place: Place) -> None:
    """Logins have the same limits, since a client may log in often and with long certificate names."""
    for number in range(3000):
        place.auditor.logged_in("TLS", "10.0.0.1", ALICE, "TLS", tls_subject=f"CN={number}" + "x" * 900)
    place.write()
    assert place.size("audit.log") <= ALLOWANCES["login"].bytes_at_once + LINE_BYTES_MAX
    assert sum(line.get("count", 1) for line in place.lines("audit.log")) == 3000


def test_a_flood_hides_nothing_new_of_its_author(place: Place) -> None:
    """A principal floods the log. Its first denial of another kind is still written."""
    for number in range(5000):
        place.deny(f"{number}" + "x" * 200)
    place.deny("secrets", api=ApiKey.DELETE_TOPICS)
    place.deny("more secrets", api=ApiKey.DELETE_TOPICS)
    place.write()
    found = [
        line["resource"] for line in place.lines("audit-refusals.log") if line.get("api") == "DeleteTopics"
    ]
    assert found == ["secrets"]


def test_what_was_only_counted_is_told_at_once_and_then_each_minute(place: Place) -> None:
    """Omitted lines of a principal are counted in a line at once, and then once a minute. A stop loses no count."""
    told = []
    for number in range(3000):
        place.deny(f"{number}" + "x" * 240)
    place.write()
    told.append([line["count"] for line in place.lines("audit-refusals.log") if line.get("further")])
    for _ in range(3):
        for number in range(500):
            place.deny(f"more {number}" + "x" * 240)
        place.clock.now_ms += 1000
        place.write()
    told.append([line["count"] for line in place.lines("audit-refusals.log") if line.get("further")])
    assert len(told[0]) == len(told[1]) == 1
    place.clock.now_ms += round(REPORT_SECONDS * 1000)
    place.write()
    found = [line["count"] for line in place.lines("audit-refusals.log") if line.get("further")]
    assert len(found) == 2
    for number in range(500):
        place.deny(f"last {number}" + "x" * 240)
    place.log.close()
    found = place.lines("audit-refusals.log")
    assert sum(line.get("count", 1) for line in found) == 3000 + 3 * 500 + 500


def test_an_account_fills_again(place: Place) -> None:
    """A limit is refilled with time. So some lines of a long flood are written all the time."""
    for number in range(5000):
        place.deny(f"{number}" + "x" * 200)
    place.clock.now_ms += 10_000
    before = len(place.lines("audit-refusals.log"))
    for number in range(1000):
        place.deny(f"later {number}" + "x" * 200)
    place.write()
    later = [
        line for line in place.lines("audit-refusals.log")[before:] if "later" in str(line.get("resource"))
    ]
    assert 10 <= len(later) <= 10 * ALLOWANCES["denied"].bytes_per_second // 200


def test_names_are_cut(place: Place) -> None:
    """A name of a client's choice is cut at 256 characters, and a principal at 1,000."""
    place.deny(EMOJI * 1000, "User:" + "p" * 2000)
    place.fail_login("n" * 1000, "10.0.0.1")
    place.change(1, client_id="i" * 1000)
    place.write()
    denied, failed = place.lines("audit-refusals.log")
    assert denied["resource"] == EMOJI * 256 + "..."
    assert denied["principal"] == "User:" + "p" * 995 + "..."
    assert failed["claimed"] == "n" * 256 + "..."
    assert place.lines("audit.log")[0]["client_id"] == "i" * 256 + "..."


def test_the_bytes_of_the_file_are_what_is_charged(place: Place) -> None:
    """The limit counts the bytes of the file: a character that JSON writes in twelve bytes counts as twelve."""
    place.deny(EMOJI * 100)
    place.write()
    line = prepared("denied", None, resource=EMOJI * 100)
    assert len(line.body) > 1200
    (written,) = (place.path / "audit-refusals.log").read_bytes().splitlines(keepends=True)
    body = written[written.index(b'"event"') : -2]
    assert len(body) + OVERHEAD_BYTES >= len(written)


def test_accounts_are_bounded() -> None:
    """The number of accounts is limited. Unused accounts are forgotten. If all are used, new principals share one
    account."""
    budgets = Budgets()
    for number in range(3 * ACCOUNTS_MAX):
        line = prepared("denied", Payer(f"User:{number}", f"a{number}", (number,)), number=number)
        budgets.admits(line, 1, 0.0)
    assert budgets.size() == 2 * ACCOUNTS_MAX
    budgets.take_further(0.0)
    late = prepared("denied", Payer("User:late", "late", ()), late=True)
    assert budgets.admits(late, 1, 3600.0)
    assert budgets.size() == 2


def test_kinds_are_bounded() -> None:
    """A principal that makes ever new kinds of lines writes at most its bytes, and a limited number of first lines."""
    budgets = Budgets()
    admitted = sum(
        budgets.admits(prepared("login", Payer(ALICE, "a", (number,)), number=number, text="x" * 900), 1, 0.0)
        for number in range(10_000)
    )
    assert admitted <= ALLOWANCES["login"].bytes_at_once // 900 + KINDS_MAX + 1
