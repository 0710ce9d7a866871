"""FindCoordinator: the broker that coordinates a group or a transactional id. (Share groups, version 6, are not
served.)"""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.conformance.asking.talk import Talk, case

GROUP, TRANSACTION, SHARE = range(3)
BATCHED_SINCE = 4


def _find(talk: Talk, version: int, key_type: int, *keys: str) -> None:
    if version >= BATCHED_SINCE:
        talk.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys)), version)
    else:
        talk.ask(FindCoordinatorRequest(keys[0], key_type), version)


def _versions(talk: Talk, *, version: int) -> None:
    _find(talk, version, GROUP, talk.name("a-group"))
    _find(talk, version, GROUP, "")


for _version in range(7):
    case(f"find_coordinator v{_version}")(partial(_versions, version=_version))
for _version in range(1, 7):
    for _key_type in (3, -1, 127):
        case(f"find_coordinator v{_version} of type {_key_type}")(
            lambda talk, version=_version, key_type=_key_type: _find(talk, version, key_type, "x")
        )
for _version in (1, 4, 5):
    case(f"find_coordinator v{_version} of type 2")(
        lambda talk, version=_version: _find(talk, version, SHARE, "group:AAAAAAAAAAAAAAAAAAAAAQ:0")
    )


@case("find_coordinator of many groups")
def _(talk: Talk) -> None:
    for version in (4, 6):
        _find(talk, version, GROUP, *(talk.name(f"g{number}") for number in range(50)))


@case("find_coordinator of no groups")
def _(talk: Talk) -> None:
    for version in (4, 6):
        _find(talk, version, GROUP)


@case("find_coordinator names a group twice")
def _(talk: Talk) -> None:
    _find(talk, 4, GROUP, "same", "same", "", "")


@case("find_coordinator of groups with unusual names")
def _(talk: Talk) -> None:
    for name in (" ", "a b", "ü", ".", "x" * 1_000, "line\nfeed"):
        _find(talk, 3, GROUP, name)
        _find(talk, 4, GROUP, name)


@case("find_coordinator of transactions")
def _(talk: Talk) -> None:
    """Find the coordinators of transactional ids. Each id has one, whether it is in use or not."""
    for version in range(1, 7):
        _find(talk, version, TRANSACTION, talk.name("an-id"))
        _find(talk, version, TRANSACTION, "")
        for name in (" ", "ü", "x" * 1_000, "line\nfeed"):
            _find(talk, version, TRANSACTION, name)
    for version in range(4, 7):
        _find(talk, version, TRANSACTION)
        _find(talk, version, TRANSACTION, *(talk.name(f"t{number}") for number in range(50)))
        _find(talk, version, TRANSACTION, "same", "same", "", "")
