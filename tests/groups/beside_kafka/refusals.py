"""Conversations whose requests are refused: full groups, wrong patterns, missing rights, unknown members and topics."""

from __future__ import annotations

from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from tests.groups.beside_kafka.asking import Talk, case
from tests.groups.beside_kafka.classic_bytes import subscription
from tests.groups.beside_kafka.transactions import Transaction

TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5
READ, WRITE, DESCRIBE = 3, 4, 8
LITERAL, DENY = 3, 2


def _deny(talk: Talk, kind: int, name: str, operation: int) -> None:
    """Take a right from everybody, and keep the answer."""
    rule = AclCreation(kind, name, LITERAL, "User:ANONYMOUS", "*", operation, DENY)
    talk.keep(talk.ask(CreateAclsRequest([rule]), 3))


@case
def refusals_of_every_version(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2)
    for version in (0, 1):
        talk.describe(version=version, groups=["", f"none-{talk.group}"])
        talk.beat("a", 3, version=version, group=f"none-{talk.group}")
    talk.beat("a", instance="i")
    for version in (0, 1):
        talk.beat("c", 2, version=version)
        talk.beat("a", 9, version=version, instance="i")
        talk.beat("b", version=version, instance="i")
        talk.beat("b", 2, version=version, instance="i")
        talk.beat("a", 2, version=version, instance="i")


@case
def full_groups(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2)
    for member in "abcde":
        talk.beat(member, by_number=True)
    for version in (0, 1):
        talk.beat("f", version=version)
    talk.beat("a", by_number=True)
    talk.answers.append(talk.join("", subscription(talk.topics["T"]), version=3).error_code)
    talk.beat("e", -1)
    talk.beat("f", by_number=True)


@case
def patterns_without_sense(talk: Talk) -> None:
    talk.create(T=1)
    for pattern in ("(", "[z-a]", "a**", "\\Qa", "(?<n>a)", "(?=a)", "a{2,1}", "a{1001}"):
        answer = talk.beat("a", topics=None, pattern=pattern)
        # Each library describes the mistake in a pattern in its own words.
        kept = talk.answers.pop()
        talk.answers.append([pattern, answer.error_code, bool(kept["error_message"])])
        if not answer.error_code:
            talk.beat("a", -1)
            talk.answers.pop()


@case
def static_members_and_offsets(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=1)
    talk.beat("a", instance="i")
    for version in (8, 9, 10):
        talk.commit("a", 2, 0, version=version, instance="i")
        talk.commit("a", 2, 0, version=version, instance="j")
        talk.commit("b", 2, 0, version=version, instance="i")
        talk.commit("a", 1, 0, version=version, instance="i")
        talk.commit("a", 2, 9, version=version)
        talk.commit("a", 2, 0, version=version, topic="nowhere")
        talk.commit("a", 2, 0, version=version, metadata="m" * 5_000)
        talk.commit("a", 2, 0, version=version, group="")
        talk.commit("a", 2, 0, version=version, group=f"none-{talk.group}")
        talk.commit("", -1, 0, version=version, group=f"simple-{version}-{talk.group}")
    for version in (8, 9, 10):
        talk.fetch("a", 2, version=version, topic="nowhere")
        talk.fetch("a", 2, version=version, group="")
        talk.fetch("a", 2, version=version, group=f"none-{talk.group}")
        talk.fetch(None, -1, version=version, group=f"none-{talk.group}")
        talk.fetch("", -1, version=version)
        talk.fetch("", 2, version=version)
    talk.delete_offset("nowhere", 0)
    talk.delete_offset("T", 0, group=f"none-{talk.group}")


@case
def classic_members_and_offsets(talk: Talk) -> None:
    talk.create(T=1)
    member = talk.join("", subscription(talk.topics["T"]), version=5, instance="i").member_id
    for version in (8, 9, 10):
        talk.commit(member, 1, 0, version=version, instance="i")
    talk.sync(member, 1)
    for version in (8, 9, 10):
        talk.commit(member, 1, 0, version=version, instance="i")
        talk.commit(member, 2, 0, version=version)
        talk.commit("b", 1, 0, version=version)
        talk.commit("b", 1, 0, version=version, instance="i")
        talk.commit("", -1, 0, version=version)
        talk.commit(member, 1, 0, version=version, metadata="m" * 5_000)
        talk.fetch(member, 1, version=version)
        talk.fetch(member, 2, version=version)
        talk.fetch("b", 1, version=version)


@case
def topics_that_may_not_be_seen(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=1, U=1)
    talk.beat("a", topics=["T", "U"])
    _deny(talk, TOPIC, talk.topics["U"], DESCRIBE)
    talk.wait_for_refusal(lambda: talk.try_beat("b", topics=["U"]))
    for version in (0, 1):
        talk.beat("b", topics=["T", "U"], version=version)
        talk.beat("a", 2, topics=["T", "U"], version=version)
        talk.describe(version=version)
    talk.beat("a", 2)
    for version in (8, 9, 10):
        talk.commit("a", 2, 0, version=version, topic="U")
        talk.fetch("a", 2, version=version, topic="U")
    for version in (3, 4, 5):
        transaction = Transaction(talk, version)
        transaction.add_group()
        transaction.commit("a", 2, topic="U")
        transaction.commit("a", 2)
        transaction.end(True)
    talk.delete_offset("U", 0)


@case
def transactional_ids_that_may_not_be_used(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=1)
    talk.beat("a")
    for version in (3, 4, 5):
        transaction = Transaction(talk, version)
        _deny(talk, TRANSACTIONAL_ID, transaction.name, WRITE)
        talk.wait_for_refusal(lambda denied=transaction: denied.try_add())
        transaction.add_group()
        transaction.commit("a", 2)


@case
def groups_that_may_not_be_read(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=1)
    talk.beat("a")
    early = [Transaction(talk, version) for version in (3, 4, 5)]
    _deny(talk, GROUP, talk.group, READ)
    talk.wait_for_refusal(lambda: talk.try_beat("a", 2))
    for version in (0, 1):
        talk.beat("a", 2, version=version)
        talk.beat("b", version=version)
        talk.describe(version=version)
    for version in (8, 9, 10):
        talk.commit("a", 2, 0, version=version)
        talk.fetch("a", 2, version=version)
    for transaction in early:
        transaction.add_group()
        transaction.commit("a", 2)
    talk.delete_offset("T", 0)
    talk.describe_as_classic(6)
    talk.list_groups([], [])
    talk.delete_group()
