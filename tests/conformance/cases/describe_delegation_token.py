"""DescribeDelegationToken: the asker's own tokens, tokens of others, and none at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tests.conformance.asking.talk import Line, Talk, case

HOUR_MS = 3_600_000


def _owner(name: str, kind: str = "User") -> DescribeDelegationTokenOwner:
    return DescribeDelegationTokenOwner(kind, name)


def _made(talk: Talk, line: Line, owner: str) -> None:
    """Make a token, and wait until the broker describes it."""
    renewers = [CreatableRenewers("User", "another")]
    made = line.ask(CreateDelegationTokenRequest("User", owner, renewers, 5 * HOUR_MS), 3)
    asked = DescribeDelegationTokenRequest([_owner(owner)])
    line.ask_until(asked, 3, lambda told: any(each.token_id == made.token_id for each in told.tokens))


for _version in (1, 2, 3):

    @case(f"describe_delegation_token v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        owner = talk.name(f"owner{version}")
        talk.ask(DescribeDelegationTokenRequest([]), version)
        talk.ask(DescribeDelegationTokenRequest(None), version)
        line = talk.line("asker")
        _made(talk, line, owner)
        line.ask(DescribeDelegationTokenRequest([]), version)
        line.ask(DescribeDelegationTokenRequest([_owner(owner)]), version)
        line.ask(DescribeDelegationTokenRequest([_owner(owner, "Group"), _owner("nobody")]), version)
        line.ask(DescribeDelegationTokenRequest([_owner(owner), _owner(owner)]), version)
        line.ask(DescribeDelegationTokenRequest(None), version, _only_of(owner))


def _only_of(owner: str) -> Callable[[Any], Any]:
    def note(told: DescribeDelegationTokenResponse) -> DescribeDelegationTokenResponse:
        told.tokens = [each for each in told.tokens if each.principal_name == owner]
        return told

    return note
