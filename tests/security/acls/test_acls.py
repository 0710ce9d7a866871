"""The authorizer's rules, its remembered decisions, and the ACLs that a filter matches.

See KIP-11, KIP-290, KIP-679 and KIP-801.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.acl_requests import AclFilter, checked_acl
from odradek.security.acls.authorizer import (
    REMEMBERED_MAX,
    Authorizer,
    AuthorizerSettings,
    Reason,
    Rights,
    parse_principals,
)
from odradek.security.acls.rules import Acl, Operation, PatternType, Permission, ResourceType
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_acls import AclCreation

TOPIC = ResourceType.TOPIC
ALICE, HOST = "User:alice", "10.0.0.1"


def rule(
    name: str = "t",
    operation: Operation = Operation.READ,
    *,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> Acl:
    """Make an ACL about a topic."""
    return Acl(kind, name, pattern, principal, host, operation, permission)


def authorizer(acls: Iterable[Acl], settings: AuthorizerSettings | None = None) -> Authorizer:
    """Make an authorizer that has read these ACLs."""
    made = Authorizer(settings or AuthorizerSettings())
    made.apply(AclIndex.of({number.to_bytes(16, "big"): acl for number, acl in enumerate(acls)}))
    return made


def allows(acls: Iterable[Acl], operation: Operation = Operation.READ, name: str = "t") -> bool:
    """True if alice may perform this operation on the topic."""
    return authorizer(acls).judge(ALICE, HOST, operation, TOPIC, name).is_allowed


@pytest.mark.parametrize(
    ("acl", "expected"),
    [
        (rule(), True),
        (rule("*"), True),
        (rule("t", pattern=PatternType.PREFIXED), True),
        (rule("", pattern=PatternType.PREFIXED), True),
        (rule("tt", pattern=PatternType.PREFIXED), False),
        (rule("u"), False),
        (rule(principal="User:*"), True),
        (rule(principal="User:bob"), False),
        (rule(host=HOST), True),
        (rule(host="10.0.0.2"), False),
        (rule(operation=Operation.ALL), True),
        (rule(operation=Operation.WRITE), False),
        (rule(kind=ResourceType.GROUP), False),
    ],
)
def test_a_rule_matches_by_name_principal_host_and_operation(acl: Acl, expected: bool) -> None:
    """An ACL applies if name, principal, host and operation match. `*` matches everything."""
    assert allows([acl]) is expected


@pytest.mark.parametrize("denial", [rule(), rule("*"), rule("t", pattern=PatternType.PREFIXED)])
def test_a_denial_wins(denial: Acl) -> None:
    """A denial wins over any number of permissions, whether its name is literal, prefixed or `*`."""
    denied = Acl(TOPIC, denial.resource_name, denial.pattern_type, ALICE, "*", Operation.ALL, Permission.DENY)
    permits = [rule(), rule("*", Operation.ALL), rule("", pattern=PatternType.PREFIXED)]
    judged = authorizer([*permits, denied]).judge(ALICE, HOST, Operation.READ, TOPIC, "t")
    assert not judged.is_allowed
    assert judged.rule == denied


@pytest.mark.parametrize("operation", list(Operation)[2:])
def test_permissions_imply_descriptions_and_denials_imply_nothing(operation: Operation) -> None:
    """READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS.

    Denials imply nothing.
    """
    describes = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE}
    assert allows([rule(operation=operation)], Operation.DESCRIBE) is (
        operation in describes | {Operation.ALL}
    )
    assert allows([rule(operation=operation)], Operation.DESCRIBE_CONFIGS) is (
        operation in (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, Operation.ALL)
    )
    denial = rule(operation=operation, permission=Permission.DENY)
    assert allows([rule("*", Operation.DESCRIBE), denial], Operation.DESCRIBE) is (
        operation not in (Operation.DESCRIBE, Operation.ALL)
    )


def test_without_rules_the_default_decides() -> None:
    """`allow.everyone.if.no.acl.found` applies to a resource only if no ACL is about it, for any principal."""
    open_door = AuthorizerSettings(allow_everyone=True)
    assert authorizer([], open_door).judge(ALICE, HOST, Operation.READ, TOPIC, "t").is_allowed
    assert not authorizer([]).judge(ALICE, HOST, Operation.READ, TOPIC, "t").is_allowed
    others = authorizer([rule(principal="User:bob")], open_door)
    assert not others.judge(ALICE, HOST, Operation.READ, TOPIC, "t").is_allowed
    assert others.judge(ALICE, HOST, Operation.READ, TOPIC, "u").reason is Reason.DEFAULT


def test_before_the_rules_are_read_only_super_users_may_act() -> None:
    """Before the ACLs are read at a start, only super users are allowed (KIP-801), whatever the default is."""
    fresh = Authorizer(AuthorizerSettings(frozenset({"User:root"}), allow_everyone=True))
    assert fresh.judge("User:root", HOST, Operation.ALTER, TOPIC, "t").is_allowed
    judged = fresh.judge(ALICE, HOST, Operation.READ, TOPIC, "t")
    assert not judged.is_allowed
    assert judged.reason is Reason.NOT_READY
    assert not fresh.judge_any(ALICE, HOST, Operation.WRITE, TOPIC).is_allowed


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([rule("a", Operation.WRITE)], True),
        ([rule("a")], False),
        ([rule("a", Operation.WRITE), rule("a", Operation.WRITE, permission=Permission.DENY)], False),
        ([rule("a", Operation.WRITE), rule("*", Operation.ALL, permission=Permission.DENY)], False),
        (
            [
                rule("ab", Operation.ALL, pattern=PatternType.PREFIXED),
                rule("a", Operation.WRITE, pattern=PatternType.PREFIXED, permission=Permission.DENY),
            ],
            False,
        ),
        (
            [
                rule("a", Operation.ALL, pattern=PatternType.PREFIXED),
                rule("a", Operation.WRITE, permission=Permission.DENY),
            ],
            True,
        ),
    ],
)
def test_a_right_to_any_topic_is_one_that_no_denial_covers(acls: list[Acl], expected: bool) -> None:
    """WRITE on any topic, which an idempotent producer needs (KIP-679), must not be covered by a denial."""
    assert authorizer(acls).judge_any(ALICE, HOST, Operation.WRITE, TOPIC).is_allowed is expected


def test_a_connection_forgets_its_decisions_when_an_acl_changes() -> None:
    """A right is given and taken. Each change applies to the next request of an open connection."""
    held = authorizer([])
    rights = Rights(held, ALICE, HOST)
    assert not rights.allows(Operation.READ, TOPIC, "t")
    held.apply(AclIndex.of({b"1" * 16: rule()}))
    assert rights.allows(Operation.READ, TOPIC, "t")
    held.apply(AclIndex())
    assert not rights.allows(Operation.READ, TOPIC, "t")


def test_a_connection_remembers_a_thousand_decisions() -> None:
    """A connection remembers a thousand decisions, and does not ask for them again. New decisions replace the
    oldest."""
    held = authorizer([rule("*")])
    rights = Rights(held, ALICE, HOST)
    for _ in range(2):
        assert all(rights.allows(Operation.READ, TOPIC, str(number)) for number in range(REMEMBERED_MAX))
    assert held.statistics()["judged"] == REMEMBERED_MAX
    for number in range(3 * REMEMBERED_MAX):
        rights.allows(Operation.READ, TOPIC, f"x{number}")
    assert len(rights._known) == REMEMBERED_MAX


@pytest.mark.parametrize(
    ("creation", "text"),
    [
        (AclCreation(4, "other", 3, ALICE, "*", 3, 3), "The only valid name for the CLUSTER resource"),
        (AclCreation(2, "", 3, ALICE, "*", 3, 3), "Invalid empty resource name"),
        (AclCreation(1, "t", 3, ALICE, "*", 3, 3), "Invalid resourceType ANY"),
        (AclCreation(2, "t", 2, ALICE, "*", 3, 3), "Invalid patternType MATCH"),
        (AclCreation(2, "t", 1, ALICE, "*", 3, 3), "Invalid patternType ANY"),
        (AclCreation(2, "t", 3, ALICE, "*", 1, 3), "Invalid operation ANY"),
        (AclCreation(2, "t", 3, ALICE, "*", 3, 1), "Invalid permissionType ANY"),
        (AclCreation(2, "t", 3, "alice", "*", 3, 3), "Could not parse principal from `alice`"),
        (AclCreation(2, "t", 3, "", "*", 3, 3), "Could not parse principal from ``"),
    ],
)
def test_a_bad_acl_gets_kafkas_words(creation: AclCreation, text: str) -> None:
    """A malformed ACL is refused with INVALID_REQUEST, in the words of Kafka's `AclControlManager`."""
    with pytest.raises(KafkaError) as refused:
        checked_acl(creation)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.message.startswith(text)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (PatternType.LITERAL, "ab", {"ab"}),
        (PatternType.PREFIXED, "a", {"a..."}),
        (PatternType.MATCH, "ab", {"ab", "a...", "*"}),
        (PatternType.ANY, "a", {"a..."}),
        (PatternType.ANY, None, {"ab", "a...", "*"}),
        (PatternType.LITERAL, "*", {"*"}),
    ],
)
def test_a_filter_means_names_by_the_kind_of_name(
    pattern: PatternType, name: str | None, expected: set[str]
) -> None:
    """A filter with MATCH finds all ACLs about a name.

    Other pattern types compare the name of the ACL itself (KIP-290).
    """
    acls = {"ab": rule("ab"), "a...": rule("a", pattern=PatternType.PREFIXED), "*": rule("*")}
    matches = AclFilter(ResourceType.ANY, name, pattern, None, None, Operation.ANY, Permission.ANY).matcher()
    assert {shown for shown, acl in acls.items() if matches(acl)} == expected


def test_super_users_are_types_and_names() -> None:
    """Super users are `type:name`, separated by semicolons, since names may contain commas."""
    assert parse_principals(" User:a ;User:CN=b,O=c;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ValueError, match="principalType:principalName"):
        parse_principals("alice")
