"""Each question is sent with every set of rights that matters to it, to a server with an authorizer.

The server knows each asker by its address alone: a client binds to an address of 127.0.0.0/8, and rules name hosts. The
address 127.0.0.1, from which the server's own nodes ask as well, may do everything. Each case has an address of its
own. So one CreateAcls before the first case makes all rules, on Apache Kafka as on our node. Only questions about
tokens are asked by a user, who logs in from the case's address. Both servers run with `allow.everyone.if.no.acl.found`:
the first CreateAcls needs no right, and after it every resource has a rule.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import attrs

from odradek.security.acls.rules import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_acls import DescribeAclsRequest
from odradek.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from odradek.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from odradek.wire.structure import ZERO_UUID
from testkit.raw_requests import RawClient
from tests.conformance.acls.questions import QUESTIONS, Names, Question, Right
from tests.conformance.asking.talk import Line, Talk, wait_until_ready
from tests.conformance.servers import find_login_listener, log_in

__all__ = ["SETTINGS", "Case", "all_cases", "answers_of"]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:nobody;User:admin",
    # The records are old, and retention would remove them during a run.
    "log.retention.ms": "-1",
}
ANONYMOUS = "User:ANONYMOUS"
ASKER = "asker"
"""The user who asks the questions that an anonymous client may not ask."""
ANSWER_SECONDS_MAX = 20.0
_NEEDS = re.compile(r"Request .* needs (\w+) permission\.", re.DOTALL)
"""Kafka puts the whole request and the listener into this message. Our message is the text of the error code."""
_CONTROLLER = re.compile(r"Local controller \d+ does")
_CLUSTER = re.compile(r'cluster id "[A-Za-z0-9_-]{22}"')


@attrs.frozen
class Case:
    """A question, and the rights of the client that asks it."""

    number: int
    question: Question
    title: str
    rights: tuple[Right, ...]
    denied: tuple[Right, ...] = ()
    pattern: str = "literal"
    """`literal`, `prefixed`, `any` (the literal name `*`), or `wrong` (the name of another thing)."""

    @property
    def name(self) -> str:
        """The case's name in the recording."""
        return f"{self.question.name}: {self.title}"

    @property
    def host(self) -> str:
        """The address of the client that asks."""
        return f"127.{1 + self.number // 60_000}.{self.number // 250 % 240}.{1 + self.number % 250}"


def all_cases() -> list[Case]:
    """Return all cases in the order in which they are asked."""
    cases: list[Case] = []
    for question in QUESTIONS:
        for title, rights, denied, pattern in _sets(question.rights):
            cases.append(Case(len(cases), question, title, rights, denied, pattern))
    return cases


def _sets(
    rights: tuple[Right, ...],
) -> Iterator[tuple[str, tuple[Right, ...], tuple[Right, ...], str]]:
    yield "no right", (), (), "literal"
    for each in rights:
        yield f"{each.operation.name} {each.on}", (each,), (), "literal"
    if len(rights) > 1:
        yield "all of these", rights, (), "literal"
    yield f"all but {rights[0].operation.name} {rights[0].on}, which is denied", rights, rights[:1], "literal"
    if any(each.on != "cluster" for each in rights):
        yield "all of these, by prefix", rights, (), "prefixed"
        yield "all of these, on everything", rights, (), "any"
        yield "all of these, on something else", rights, (), "wrong"


class _Told(Talk):
    """A `Talk` without connections, which only makes answers comparable."""

    def line(self) -> Line:
        return None  # type: ignore[return-value]  # nobody asks through it


class _Client(RawClient):
    """A connection from a source address of its own."""

    def __init__(self, bootstrap: str, source: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Stage:
    """The topics, groups and rules of all cases on one server."""

    def __init__(self, bootstrap: str, tag: str) -> None:
        self.bootstrap = bootstrap
        self.tag = tag
        self.admin = _Client(bootstrap, "127.0.0.1")
        self.ids: dict[str, bytes] = {}
        self.logins = find_login_listener(self.admin)
        self.owner = f"User:owner-{tag}"
        self.token, self.hmac = self._make_token()
        self.controller = self._controller()

    def _make_token(self) -> tuple[str, bytes]:
        """Make a token. Return its id and secret once the broker and the controller know it."""
        kind, _, name = self.owner.partition(":")
        described = DescribeDelegationTokenRequest([DescribeDelegationTokenOwner(kind, name)])
        with _Client(self.logins, "127.0.0.1") as client:
            log_in(client, "admin")
            renewers = [CreatableRenewers("User", "admin")]
            made = client.request(CreateDelegationTokenRequest(kind, name, renewers, -1), 3)
            assert not made.error_code, made
            for _ in range(1_000):
                told = client.request(described, 3).tokens
                # Only a renewal shows that the controller knows the token.
                renewed = client.request(RenewDelegationTokenRequest(made.hmac, -1), 2)
                if told and not renewed.error_code:
                    return str(made.token_id), bytes(made.hmac)
                time.sleep(0.01)
        raise TimeoutError("the token does not come")

    def _controller(self) -> str:
        part = DescribeQuorumRequestPartitionData(0)
        topic = DescribeQuorumRequestTopicData("__cluster_metadata", [part])
        described = self.admin.request(DescribeQuorumRequest([topic]), 2)
        endpoint = described.nodes[0].listeners[0]
        return f"{endpoint.host}:{endpoint.port}"

    def name(self, stem: str, case: Case) -> str:
        """Return the name of a topic, group or id: the same for all cases, or with the case's number if it changes
        things."""
        own = f"{case.number}-" if case.question.changes else ""
        return f"{stem}-{own}{self.tag}"

    def names(self, case: Case) -> Names:
        known, other = self.name("known", case), f"other-{self.tag}"
        return Names(
            known,
            self.ids[known],
            other,
            self.ids[other],
            self.name("absent", case),
            f"group-{self.tag}",
            f"id-{self.tag}",
            self.owner,
            self.token,
            self.hmac,
        )

    def set(self, cases: list[Case]) -> None:
        """Make the topics, the group, and then the rules."""
        wanted = dict.fromkeys([f"other-{self.tag}", *(self.name("known", case) for case in cases)])
        topics = [CreatableTopic(name, 1, 1, [], []) for name in wanted]
        created = self.admin.request(CreateTopicsRequest(topics, 20_000, False), 7)
        assert not any(each.error_code for each in created.topics), created
        for each in created.topics:
            self.ids[each.name] = each.topic_id
        self._wait_for_leaders(list(wanted))
        self._commit(f"group-{self.tag}", f"other-{self.tag}")
        self._create_rules(cases)

    def _wait_for_leaders(self, names: list[str]) -> None:
        request = MetadataRequest([MetadataRequestTopic(ZERO_UUID, name) for name in names], False)
        for _ in range(1_000):
            told = self.admin.request(request, 12).topics
            if all(not t.error_code and all(p.leader_id >= 0 for p in t.partitions) for t in told):
                asked = [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -2)]) for name in names]
                led = self.admin.request(ListOffsetsRequest(-1, 0, asked), 7)
                if not any(t.partitions[0].error_code for t in led.topics):
                    return
            time.sleep(0.01)
        raise TimeoutError("topics without leaders")

    def _commit(self, group: str, topic: str) -> None:
        part = [OffsetCommitRequestPartition(0, 5, -1, "")]
        request = OffsetCommitRequest(
            group, -1, "", None, -1, [OffsetCommitRequestTopic(topic, ZERO_UUID, part)]
        )
        for _ in range(1_000):
            if not self.admin.request(request, 8).topics[0].partitions[0].error_code:
                return
            time.sleep(0.01)
        raise TimeoutError("no coordinator")

    def _create_rules(self, cases: list[Case]) -> None:
        """Create the rules of all cases. Raises `ValueError` if the server has rules already, from another run."""
        everything = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
        if self.admin.request(everything, 3).resources:
            raise ValueError(f"{self.bootstrap} has rules already: start a server of its own for this")
        rules = [
            _rule(kind, name, PatternType.LITERAL, "127.0.0.1", Operation.ALL, Permission.ALLOW, ANONYMOUS)
            for kind, name in (
                *((kind, "*") for kind in ResourceType if kind not in (0, 1, ResourceType.CLUSTER)),
                (ResourceType.CLUSTER, CLUSTER_NAME),
            )
        ]
        for case in cases:
            rules += self._rules_of(case)
        created = self.admin.request(CreateAclsRequest(rules), 3)
        assert not any(each.error_code for each in created.results), created.results
        told = {
            (r.resource_type, r.resource_name, r.resource_pattern_type, r.principal, r.host, r.operation)
            for r in rules
        }
        for _ in range(1_000):
            found = sum(len(each.acls) for each in self.admin.request(everything, 3).resources)
            if found >= len(told):
                return
            time.sleep(0.01)
        raise TimeoutError("the rules do not come")

    def _rules_of(self, case: Case) -> list[AclCreation]:
        rules = []
        names = self.names(case)
        for permission, rights in ((Permission.ALLOW, case.rights), (Permission.DENY, case.denied)):
            for each in rights:
                kind, pattern = each.resource_type, PatternType.LITERAL
                name = CLUSTER_NAME if each.on == "cluster" else getattr(names, each.on)
                if each.on != "cluster" and case.pattern == "prefixed":
                    name, pattern = name[:4], PatternType.PREFIXED
                elif each.on != "cluster" and case.pattern != "literal":
                    name = "*" if case.pattern == "any" else f"wrong-{name}"
                principal = f"User:{ASKER}" if case.question.logs_in else ANONYMOUS
                rules.append(_rule(kind, name, pattern, case.host, each.operation, permission, principal))
        return rules

    def ask(self, case: Case) -> Any:
        """Ask the question of a case. Return the answer in comparable form."""
        question, told = case.question, _Told(self.bootstrap, self.tag)
        address = self.controller if question.on_controller else self.bootstrap
        if question.logs_in:
            address = self.logins
        told.give_name(self.bootstrap, "SERVER")
        with _Client(address, case.host) as client:
            if question.logs_in:
                log_in(client, ASKER)
            try:
                response = client.request(question.build(self.names(case)), question.version)
            except ConnectionError:
                return "closed"
        shown = told.told(response, question.version)
        return _plain(shown, str(case.number), address.rpartition(":")[2])


def _rule(
    kind: int, name: str, pattern: int, host: str, operation: int, permission: int, principal: str
) -> AclCreation:
    return AclCreation(kind, name, pattern, principal, host, operation, permission)


def _plain(value: Any, number: str, port: str) -> Any:
    """Remove from a value whatever differs from server to server or with the number of the case."""
    if isinstance(value, dict):
        return {
            key: "PORT" if key == "port" and str(each) == port else _plain(each, number, port)
            for key, each in value.items()
            if key != "api_keys"
        }
    if isinstance(value, list):
        return [_plain(each, number, port) for each in value]
    if isinstance(value, str):
        text = value if _NEEDS.fullmatch(value) is None else "Cluster authorization failed."
        text = _CONTROLLER.sub("Local controller does", text)
        text = _CLUSTER.sub("cluster id CLUSTER", text)
        return re.sub(rf"(known|absent)-{number}-", r"\1-", text)
    return value


def answers_of(bootstrap: str, tag: str) -> dict[str, Any]:
    """Return the answers to all cases, by name."""
    cases = all_cases()
    wait_until_ready(bootstrap)
    stage = _Stage(bootstrap, tag)
    stage.set(cases)
    return {case.name: stage.ask(case) for case in cases}
