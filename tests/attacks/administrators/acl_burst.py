"""An administrator makes thousands of rules about one topic in one request, and removes them in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tests.attacks.clients.many_rules import ALLOW, ANY, LITERAL, READ, TOPIC, cpu_of
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "administrator"
RULES = 10_000
TIMES = 1.6
SLACK_SECONDS = 0.1
HOST = "10.9.8.7"
"""The host in each rule that this attack makes. No other rule names it."""


def burst(place: Place, admin: Conn, names: Sequence[str]) -> tuple[float, float]:
    """Make a rule for each name, then remove all of them. Return the node's CPU seconds for each of the two
    requests."""
    rules = [
        AclCreation(TOPIC, name, LITERAL, f"User:burst-{number}", HOST, READ, ALLOW)
        for number, name in enumerate(names)
    ]

    def create() -> None:
        results = admin.call(CreateAclsRequest(rules), 3).results
        assert {each.error_code for each in results} == {ErrorCode.NONE}

    def delete() -> None:
        asked = DeleteAclsFilter(ANY, None, ANY, None, HOST, ANY, ANY)
        gone = admin.call(DeleteAclsRequest([asked]), 3).filter_results[0]
        assert len(gone.matching_acls) == len(rules), (gone.error_code, len(gone.matching_acls))

    return cpu_of(place, create), cpu_of(place, delete)


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Compare the cost of many rules about one topic with that of as many rules about different topics."""
    count = max(5_000, int(RULES * scale))
    with place.admin() as admin:
        many = burst(place, admin, [f"burst-{number}" for number in range(count)])
        one = burst(place, admin, ["burst"] * count)
    for what, of_one, of_many in zip(("made", "removed"), one, many, strict=True):
        yield Outcome(
            f"{count} rules are {what} in one request as cheaply for one topic as for many",
            of_one <= TIMES * of_many + SLACK_SECONDS,
            f"one topic: {of_one:.3f} s of CPU; a topic each: {of_many:.3f} s",
        )
