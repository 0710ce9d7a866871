"""A client without rights makes as many delegation tokens as it can, as large as it can, and renews one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "client"
TOKENS = 1_500
PER_OWNER = 1_000
"""The default of `odradek.delegation.token.max.per.owner`; the short form stays below."""
RENEWALS = 2_000
AT_ONCE = 50
"""How many requests are sent before their answers are read."""
RECORD_BYTES_MAX = 8 << 10
"""The most that one change of a token may add to the metadata log."""
HELD_KIB_MAX = 64 << 10
RATE = 5.0


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Make tokens up to the limit and beyond, and renew one again and again. Then renew it under a quota of changes."""
    with place.client() as client:
        # An attack that was cut off has left some tokens behind.
        _end_all(client)
        try:
            yield from _make_many(place, client, max(20, round(TOKENS * scale)))
            yield from _renew_much(place, client, max(100, round(RENEWALS * scale)))
            with place.admin() as admin:
                yield from _under_a_quota(admin, client)
        finally:
            _end_all(client)


def _end_all(client: Conn) -> None:
    held = client.call(DescribeDelegationTokenRequest(None)).tokens
    _all(client, [ExpireDelegationTokenRequest(each.hmac, -1) for each in held])


def _make_many(place: Place, client: Conn, wanted: int) -> Iterator[Outcome]:
    crowd = [CreatableRenewers("User", f"{number:05d}{'x' * 49}") for number in range(1_000)]
    code = client.call(CreateDelegationTokenRequest(None, None, crowd, -1)).error_code
    yield Outcome("a token has renewers in the tens", code == ErrorCode.POLICY_VIOLATION, f"code {code}")
    giant = [CreatableRenewers("User", "x" * 30_000)]
    code = client.call(CreateDelegationTokenRequest(None, None, giant, -1)).error_code
    yield Outcome("a renewer's name is bounded", code == ErrorCode.POLICY_VIOLATION, f"code {code}")
    before = place.node.process.rss_kib()
    largest = [CreatableRenewers("User", f"{number:02d}{'x' * 190}") for number in range(20)]
    answers = _all(client, [CreateDelegationTokenRequest(None, None, largest, -1)] * wanted)
    codes = Counter(each.error_code for each in answers)
    grown = place.node.process.rss_kib() - before
    held = len(client.call(DescribeDelegationTokenRequest(None)).tokens)
    note = f"{held} of {wanted}, {grown} KiB, codes {dict(codes)}"
    expected = {ErrorCode.NONE: min(wanted, PER_OWNER)}
    if wanted > PER_OWNER:
        expected[ErrorCode.POLICY_VIOLATION] = wanted - PER_OWNER
    yield Outcome("an owner's tokens are bounded", codes == expected and held <= PER_OWNER, note)
    yield Outcome("all of them cost some MiB of memory", grown < HELD_KIB_MAX, note)


def _renew_much(place: Place, client: Conn, times: int) -> Iterator[Outcome]:
    token = client.call(DescribeDelegationTokenRequest(None)).tokens[0]
    before = _metadata_files(place)
    _all(client, [RenewDelegationTokenRequest(token.hmac, 10**8 + number) for number in range(times)])
    # A snapshot may have removed old files in the meantime.
    written = sum(max(0, size - before.get(name, 0)) for name, size in _metadata_files(place).items())
    each = written / times
    yield Outcome("a renewal writes some KiB", 0 < each < RECORD_BYTES_MAX, f"{each:.0f} bytes")


def _under_a_quota(admin: Conn, client: Conn) -> Iterator[Outcome]:
    """Give the client a quota of changes, as an administrator can. Then renew a token until the quota refuses it."""
    token = client.call(DescribeDelegationTokenRequest(None)).tokens[0]
    client.client_id = f"attack-{uuid4().hex[:8]}"
    _set_quota(admin, client.client_id, RATE)
    try:
        codes: Counter[int] = Counter()
        for number in range(20):
            renewals = [
                RenewDelegationTokenRequest(token.hmac, 10**7 + number * AT_ONCE + n) for n in range(AT_ONCE)
            ]
            codes.update(each.error_code for each in _all(client, renewals))
            if codes[ErrorCode.THROTTLING_QUOTA_EXCEEDED]:
                break
        yield Outcome(
            "a quota of changes counts tokens",
            codes[ErrorCode.THROTTLING_QUOTA_EXCEEDED] > 0,
            f"{dict(codes)}",
        )
    finally:
        _set_quota(admin, client.client_id, None)
        client.client_id = "attack"


def _set_quota(admin: Conn, client_id: str, rate: float | None) -> None:
    change = OpData("controller_mutation_rate", rate or 0.0, rate is None)
    entry = AlterClientQuotasRequestEntryData([EntityData("client-id", client_id)], [change])
    answer = admin.call(AlterClientQuotasRequest([entry], False))
    assert not answer.entries[0].error_code, answer


def _all(conn: Conn, requests: Sequence[Any]) -> list[Any]:
    """Send requests, `AT_ONCE` at a time. Return their answers."""
    answers = []
    for start in range(0, len(requests), AT_ONCE):
        some = requests[start : start + AT_ONCE]
        versions = [conn.send(each) for each in some]
        answers += [
            conn.receive(ApiKey(each.API_KEY), version) for each, version in zip(some, versions, strict=True)
        ]
    return answers


def _metadata_files(place: Place) -> dict[str, int]:
    """Return the size of each file of the node's metadata log, by name."""
    found = {}
    for each in place.node.directory.rglob("__cluster_metadata-0/*.log"):
        with suppress(FileNotFoundError):  # a snapshot has just taken it away
            found[each.name] = each.stat().st_size
    return found
