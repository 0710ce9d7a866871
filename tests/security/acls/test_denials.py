"""Refusals in the audit log: each refusal of a request is reported, but not the resources that a list leaves out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from odradek.data_plane.handlers.apis import APIS
from odradek.metadata_quorum.controller.doors import CONTROLLER_DOORS, ControllerDoors
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.authorizer import DENIALS_MAX, Authorizer, AuthorizerSettings, Denial, Rights
from odradek.security.acls.rules import CLUSTER_NAME, Acl, Operation, ResourceType
from odradek.security.audit.audit_lines import Payer, PreparedLine, Value
from odradek.security.audit.auditor import Auditor
from odradek.security.doors.door import Admitted, Asked, GuardedHandler
from odradek.serving.contract import Context
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from odradek.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic

HOST, ALICE = "10.0.0.1", "User:alice"


class Topics:
    """A cluster without topics."""

    topics: ClassVar[dict[str, Any]] = {}
    topics_by_id: ClassVar[dict[bytes, Any]] = {}


class Heard:
    """An auditor that keeps the denials that an authorizer reports."""

    def __init__(self) -> None:
        self.denials: list[tuple[int, str, str | None]] = []
        self.further = 0

    def denied(self, rights: Rights, api_key: int, denials: Sequence[Denial], further: int) -> None:
        self.further += further
        self.denials += [(api_key, Operation(each.operation).name, each.name) for each in denials]


def judged(*acls: Acl, settings: AuthorizerSettings | None = None) -> tuple[Authorizer, Heard]:
    """Make an authorizer with these ACLs, and an auditor that gets its denials."""
    made, heard = Authorizer(settings or AuthorizerSettings()), Heard()
    made.apply(AclIndex.of({bytes([number]) * 16: acl for number, acl in enumerate(acls)}))
    made.auditor = heard
    return made, heard


def may(kind: ResourceType, name: str, operation: Operation) -> Acl:
    """Make an ACL that allows alice to do this."""
    return Acl(kind, name, 3, ALICE, "*", operation, 3)


def ask(authorizer: Authorizer, api: ApiKey, request: Any, answer: Any = None, *, version: int = 0) -> Any:
    """Send a request through a broker's door, and return the answer."""
    door = APIS[api].door
    handler = GuardedHandler(lambda context, request: answer, door, authorizer, Topics, api_key=api)
    context = Context("SASL", HOST)
    context.principal, context.api_version = ALICE, version
    return handler.handle(context, request)


def test_each_refused_resource_is_told_once() -> None:
    """A request names a refused topic twice. One denial is reported for it."""
    authorizer, heard = judged(may(ResourceType.GROUP, "g", Operation.READ))
    topics = [OffsetCommitRequestTopic(name=name) for name in ("a", "b", "a")]
    ask(authorizer, ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group_id="g", topics=topics), OffsetAnswer())
    assert heard.denials == [(ApiKey.OFFSET_COMMIT, "READ", "a"), (ApiKey.OFFSET_COMMIT, "READ", "b")]


class OffsetAnswer:
    """An answer to which refusals are added."""

    topics: Any = ()


def test_a_remembered_refusal_is_told_again() -> None:
    """A decision is remembered by the connection. Each request that is refused by it is still reported."""
    authorizer, heard = judged()
    handler = GuardedHandler(
        lambda context, request: None, APIS[ApiKey.OFFSET_COMMIT].door, authorizer, Topics, api_key=8
    )
    context = Context("SASL", HOST)
    for _ in range(3):
        handler.handle(context, OffsetCommitRequest(group_id="g"))
    assert heard.denials == [(ApiKey.OFFSET_COMMIT, "READ", "g")] * 3
    assert authorizer.statistics()["judged"] == 1


def test_lists_and_alternatives_tell_nothing() -> None:
    """Topics and groups that a list hides are not reported as denials. Neither is a missing right, if another right
    suffices."""
    authorizer, heard = judged(may(ResourceType.TOPIC, "t", Operation.WRITE))
    hidden = MetadataResponse(topics=[MetadataResponseTopic(0, "secret")])
    shown = ask(authorizer, ApiKey.METADATA, MetadataRequest(None), hidden, version=9)
    assert shown.topics == []
    groups = ask(
        authorizer, ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse(groups=[ListedGroup("g")])
    )
    assert groups.groups == []
    assert ask(authorizer, ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, 1), "made") == "made"
    assert heard.denials == []
    named = MetadataRequest([MetadataRequestTopic(name="secret")])
    ask(authorizer, ApiKey.METADATA, named, MetadataResponse(topics=[]), version=9)
    assert heard.denials == [(ApiKey.METADATA, "DESCRIBE", "secret")]


def test_what_passes_all_doors_leaves_nothing_behind() -> None:
    """Requests that pass all doors leave no denial behind. Otherwise the next request would report it."""
    authorizer, heard = judged(may(ResourceType.CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION))
    for api, request in ((ApiKey.WRITE_TXN_MARKERS, None), (ApiKey.ADD_PARTITIONS_TO_TXN, None)):
        asked = Asked(Rights(authorizer, ALICE, HOST), 5, Topics())
        assert APIS[api].door(asked, request) is None
        asked.rights.log_denials(api)
    of_nodes = [
        door for door in CONTROLLER_DOORS.values() if door.__doc__ == "CLUSTER_ACTION on the cluster."
    ]
    assert of_nodes
    for api, door in CONTROLLER_DOORS.items():
        if door in of_nodes:
            asked = Asked(Rights(authorizer, ALICE, HOST), 0, Topics())
            assert door(asked, None) is None
            asked.rights.log_denials(api)
    assert heard.denials == []


def test_the_controller_tells_the_client_of_an_envelope() -> None:
    """The controller's doors report denials only when `log_denials` is called, since they may run in a worker."""
    authorizer, heard = judged()
    doors = ControllerDoors(authorizer, Topics)
    admitted = doors.admit(ALICE, HOST, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), 7)
    assert isinstance(admitted, Admitted)
    assert heard.denials == []
    doors.log_denials()
    assert heard.denials == [(ApiKey.CREATE_TOPICS, "CREATE", "t")]


def test_one_request_tells_so_much() -> None:
    """A request names hundreds of refused topics. Some denials are reported, and the others counted."""
    authorizer, heard = judged(may(ResourceType.GROUP, "g", Operation.READ))
    topics = [OffsetCommitRequestTopic(name=f"t{number}") for number in range(500)]
    ask(authorizer, ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group_id="g", topics=topics), OffsetAnswer())
    assert (len(heard.denials), heard.further) == (DENIALS_MAX, 500 - DENIALS_MAX)


class KeptLines:
    """An audit log that keeps its lines in a list."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def put(self, line: PreparedLine, count: int = 1) -> None:
        assert (line.event, count) == ("denied", 1)
        assert line.payer is not None
        assert (line.payer.principal, line.payer.address) == (ALICE, HOST)
        self._lines.append(json.loads(b"{%b}" % line.body))

    def note(self, event: str, /, payer: Payer | None = None, count: int = 1, **fields: Value) -> None:
        raise AssertionError("a request in these tests has denials that were only counted")


def test_the_line_says_why() -> None:
    """A denial's line gives the reason: the ACL that denies, a missing ACL, or ACLs that are still to be read."""
    denies = Acl(ResourceType.TOPIC, "orders-", 4, ALICE, "10.0.0.1", Operation.ALL, 2)
    authorizer, _ = judged(denies)
    auditor, lines = Auditor(1), list[dict[str, Any]]()
    auditor.lines = KeptLines(lines)
    for authority in (authorizer, Authorizer(AuthorizerSettings())):
        authority.auditor = auditor
        rights = Rights(authority, ALICE, HOST, listener="SASL")
        for name in ("orders-1", "other"):
            assert not rights.allows(Operation.READ, ResourceType.TOPIC, name)
        assert not rights.allows_any(Operation.WRITE, ResourceType.TOPIC)
        rights.log_denials(ApiKey.FETCH)
    assert [(line["resource"], line["reason"]) for line in lines] == [
        ("orders-1", "rule: DENY User:alice from host 10.0.0.1: ALL on prefixed TOPIC 'orders-'"),
        ("other", "no rule"),
        (None, "no rule"),
        ("orders-1", "this broker has not read the ACLs yet"),
        ("other", "this broker has not read the ACLs yet"),
        (None, "this broker has not read the ACLs yet"),
    ]
    assert auditor.denials == {"Fetch": 6}
    authorizer.auditor = auditor
    authorizer.apply(AclIndex())
    rights = Rights(authorizer, ALICE, HOST, listener="SASL")
    assert not rights.allows(Operation.READ, ResourceType.TOPIC, "orders-1")
    rights.log_denials(ApiKey.FETCH)
    assert lines[-1]["reason"] == "no rule"
