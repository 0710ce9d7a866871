"""A client without rights names thousands of groups and topics, while thousands of other rules cover all names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "client"
TOPIC, GROUP = 2, 3
LITERAL, READ, ALLOW, ANY = 3, 3, 3, 1
RULES = 10_000
NAMES = 3_900
RULES_PER_REQUEST = 500
TIMES = 2.5
"""The largest factor by which rules of other users may raise the cost of a request. It leaves room for the load of
other clients."""
SLACK_SECONDS = 0.1


def create(admin: Conn, creations: Sequence[AclCreation]) -> None:
    """Make rules, at most `RULES_PER_REQUEST` in one request."""
    for start in range(0, len(creations), RULES_PER_REQUEST):
        some = list(creations[start : start + RULES_PER_REQUEST])
        codes = {each.error_code for each in admin.call(CreateAclsRequest(some), 3).results}
        assert codes == {ErrorCode.NONE}, codes


def delete(admin: Conn, kind: int, name: str | None, principal: str | None = None) -> int:
    """Remove the rules about a resource or of a principal. Return how many were removed."""
    asked = DeleteAclsFilter(kind, name, LITERAL, principal, None, ANY, ANY)
    result = admin.call(DeleteAclsRequest([asked]), 3).filter_results[0]
    assert not result.error_code, result.error_message
    return len(result.matching_acls)


def host_of(number: int) -> str:
    """Return the host of an application. Each host has 250 applications."""
    return f"10.0.0.{number // 250}"


@contextmanager
def rules_for_all_names(admin: Conn, count: int) -> Iterator[None]:
    """Let `count` applications read all groups and all topics while the block runs."""
    for kind in (GROUP, TOPIC):
        create(
            admin,
            [
                AclCreation(kind, "*", LITERAL, f"User:many-rules-{number}", host_of(number), READ, ALLOW)
                for number in range(count)
            ],
        )
    try:
        yield
    finally:
        for kind in (GROUP, TOPIC):
            # The rules are removed in small requests, since their removal is no part of the attack.
            for host in sorted({host_of(number) for number in range(count)}):
                asked = DeleteAclsFilter(kind, "*", LITERAL, None, host, ANY, ANY)
                result = admin.call(DeleteAclsRequest([asked]), 3).filter_results[0]
                assert not result.error_code, result.error_message


def requests(names: Sequence[str]) -> dict[str, tuple[Any, int]]:
    """Return requests that each name all of `names`, with their versions."""
    return {
        "DescribeGroups": (DescribeGroupsRequest(list(names), False), 5),
        "FindCoordinator": (FindCoordinatorRequest("", 0, list(names)), 4),
        "OffsetFetch": (
            OffsetFetchRequest(
                "", [], [OffsetFetchRequestGroup(each, None, -1, None) for each in names], False
            ),
            9,
        ),
        "Metadata": (
            MetadataRequest([MetadataRequestTopic(bytes(16), each) for each in names], False, False, False),
            12,
        ),
    }


def costs(place: Place, names: int, mark: str) -> dict[str, float]:
    """Return the node's CPU seconds for each request: the least of three runs, each with new names and a new
    connection."""
    found: dict[str, float] = {}
    for run in range(3):
        texts = [f"{mark}-{run}-{number}" for number in range(names)]
        for what, (request, version) in requests(texts).items():
            with place.client() as client:
                spent = cpu_of(place, lambda c=client, r=request, v=version: c.call(r, v))  # type: ignore[misc]  # called at once
            found[what] = min(found.get(what, spent), spent)
    return found


def cpu_of(place: Place, call: Callable[[], object]) -> float:
    """Return the CPU seconds that the node spends while the call runs."""
    before = place.node.process.cpu_seconds()
    call()
    return place.node.process.cpu_seconds() - before


def first_producer_ids(place: Place, connections: int) -> float:
    """Return the node's CPU seconds for connections that log in and ask for a producer id. Each request is refused."""

    def ask() -> None:
        for _ in range(connections):
            with place.client() as client:
                code = client.call(InitProducerIdRequest(None, 1000, -1, -1), 4).error_code
                assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, code

    return cpu_of(place, ask)


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Send the same requests before the rules exist and while they exist, and compare the costs."""
    count, names = max(2_000, int(RULES * scale)), NAMES
    connections = max(5, int(40 * scale))
    before, producing_before = costs(place, names, "before"), first_producer_ids(place, connections)
    with place.admin() as admin, rules_for_all_names(admin, count):
        first_producer_ids(place, 1)
        during, producing = costs(place, names, "during"), first_producer_ids(place, connections)
    for what, spent in during.items():
        yield Outcome(
            f"{what} of {names} names costs the same beside {count} rules for all names",
            spent <= TIMES * before[what] + SLACK_SECONDS,
            f"{before[what]:.3f} s of CPU without rules, {spent:.3f} s beside them",
        )
    yield Outcome(
        "a producer's first question costs the same beside rules of others",
        producing <= TIMES * producing_before + SLACK_SECONDS,
        f"{connections} connections: {producing_before:.3f} s of CPU without rules, {producing:.3f} s beside them",
    )
