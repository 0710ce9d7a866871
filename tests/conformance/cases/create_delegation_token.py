"""CreateDelegationToken: for the asker and for others, with renewers and lifetimes, and by users who may not."""

from __future__ import annotations

from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from tests.conformance.asking.talk import Talk, case

HOUR_MS = 3_600_000
FAR = (1 << 63) - 1

for _version in (1, 2, 3):

    @case(f"create_delegation_token v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        renewers = [CreatableRenewers("User", "another"), CreatableRenewers("User", "")]
        talk.ask(CreateDelegationTokenRequest("", "", renewers, 5 * HOUR_MS), version)
        line = talk.line("asker")
        line.ask(CreateDelegationTokenRequest("", "", renewers, 5 * HOUR_MS), version)
        line.ask(CreateDelegationTokenRequest(), version)


@case("create_delegation_token with lifetimes")
def _(talk: Talk) -> None:
    line = talk.line("asker")
    for lifetime_ms in (-1, 0, -FAR, HOUR_MS, 30 * HOUR_MS, FAR):
        line.ask(CreateDelegationTokenRequest("", "", [], lifetime_ms), 3)


@case("create_delegation_token for others")
def _(talk: Talk) -> None:
    line = talk.line("asker")
    for kind, name in (
        ("User", "another"),
        ("User", "asker"),
        ("Group", "asker"),
        ("", "asker"),
        ("User", ""),
        ("User", None),
        (None, None),
    ):
        line.ask(CreateDelegationTokenRequest(kind, name, [], HOUR_MS), 3)
    talk.ask(CreateDelegationTokenRequest("User", "another", [], HOUR_MS), 3)
    line.ask(CreateDelegationTokenRequest(None, "asker", [], HOUR_MS), 3)


@case("create_delegation_token with renewers that cannot be")
def _(talk: Talk) -> None:
    line = talk.line("asker")
    for kind in ("Group", "user", ""):
        renewers = [CreatableRenewers("User", "another"), CreatableRenewers(kind, "g")]
        line.ask(CreateDelegationTokenRequest("", "", renewers, HOUR_MS), 3)
    talk.ask(CreateDelegationTokenRequest("", "", [CreatableRenewers("Group", "g")], HOUR_MS), 3)
