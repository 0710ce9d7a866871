"""How a client reaches its coordinator, and the few rights that it needs there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from odradek.security.acls.rules import Operation, PatternType, Permission, ResourceType
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.attacks.place import Place
from tests.attacks.raw import ATTACKERS_HOST, Conn

GROUP, TRANSACTION = 0, 1
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.05
RETRIABLE = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
)
_PRINCIPAL = "User:client"
_NAMED = (_PRINCIPAL, "*", Operation.ALL, Permission.ALLOW)


@contextmanager
def allowed(place: Place, resources: Sequence[tuple[ResourceType, str]]) -> Iterator[None]:
    """Let `client` do everything with these resources while the block runs."""
    rules = [AclCreation(kind, name, PatternType.LITERAL, *_NAMED) for kind, name in resources]
    filters = [DeleteAclsFilter(kind, name, PatternType.LITERAL, *_NAMED) for kind, name in resources]
    with place.admin() as admin:
        results = admin.call(CreateAclsRequest(rules), 3).results
        assert not any(each.error_code for each in results), results
    try:
        yield
    finally:
        # If the node has died, the outcomes of the attack say so.
        with suppress(OSError), place.admin() as admin:
            admin.call(DeleteAclsRequest(filters), 3)


def answered(ask: Callable[[], Any], code: Callable[[Any], int]) -> Any:
    """Ask until the error code is not a retriable one, or the time is up. Return the last answer."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = ask()
        if code(answer) not in RETRIABLE or time.monotonic() > until:
            return answer
        time.sleep(PAUSE_SECONDS)


def at_coordinator(place: Place, kind: int, key: str) -> Conn:
    """Connect `client` to the coordinator of a group or a transactional id."""
    with place.client() as client:
        found = answered(
            lambda: client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4),
            lambda answer: int(answer.coordinators[0].error_code),
        ).coordinators[0]
    assert not found.error_code, f"no coordinator of {key}: code {found.error_code}"
    return Conn(found.port, source=ATTACKERS_HOST).login("client", place.password("client"))


def make_topic(place: Place, name: str) -> None:
    """Make a topic of one partition if it does not exist."""
    with place.admin() as admin:
        admin.call(CreateTopicsRequest([CreatableTopic(name, 1, -1, [], [])], 20_000, False), 7)
