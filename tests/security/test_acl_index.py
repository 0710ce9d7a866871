"""The index of ACLs decides as a look at every rule does, whatever came and went before (KIP-290, KIP-679, KIP-801)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_quorum.image.layered_map import LayeredMap
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings, Reason
from odradek.security.acls.rules import Acl, Operation, PatternType, Permission, ResourceType

HOST = "10.0.0.1"
USERS = ("User:alice", "User:bob", "User:*", "Role:alice")
OPERATIONS = (Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
ASKED = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALL)
IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
MANY = 10_000

names = st.text("ab", min_size=1, max_size=3)
rules = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.one_of(names, st.just("*")),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(USERS),
    st.sampled_from(["*", HOST, "10.0.0.2"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
batches = st.lists(st.dictionaries(st.integers(0, 30), st.one_of(st.none(), rules), max_size=12), max_size=4)


def is_about(acl: Acl, kind: int, name: str) -> bool:
    """True if a rule is about a resource."""
    if acl.resource_type != kind:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")


def is_for(acl: Acl, principal: str, host: str) -> bool:
    """True if a rule is about a client."""
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def answer(acls: Iterable[Acl], principal: str, operation: Operation, kind: int, name: str) -> str:
    """The answer by a look at every rule: a denial, a permission, rules of others alone (`none`), or a free resource."""
    about = [acl for acl in acls if is_about(acl, kind, name)]
    mine = [acl for acl in about if is_for(acl, principal, HOST)]
    if any(
        acl.permission_type == Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in mine
    ):
        return "deny"
    permitting = {operation, Operation.ALL} | IMPLYING.get(operation, set())
    if any(acl.permission_type == Permission.ALLOW and acl.operation in permitting for acl in mine):
        return "allow"
    return "none" if about else "free"


def may_any(acls: Iterable[Acl], principal: str, operation: Operation, kind: int) -> bool:
    """True if a permission for some resource is left when all that denials cover is taken out."""
    mine = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and is_for(acl, principal, HOST)
        and acl.operation in (operation, Operation.ALL)
    ]
    denied = {(acl.pattern_type, acl.resource_name) for acl in mine if acl.permission_type == Permission.DENY}
    if (PatternType.LITERAL, "*") in denied:
        return False
    for acl in mine:
        if acl.permission_type == Permission.DENY:
            continue
        pattern, name = acl.pattern_type, acl.resource_name
        if (pattern, name) == (PatternType.LITERAL, "*"):
            return True
        prefixes = [name[:length] for length in range(len(name) + 1)]
        if (pattern, name) not in denied and not any(
            (PatternType.PREFIXED, prefix) in denied for prefix in prefixes
        ):
            return True
    return False


def replayed(changes: list[dict[int, Acl | None]]) -> tuple[AclIndex, dict[bytes, Acl]]:
    """The index after these batches, and the rules that are left."""
    index, known = AclIndex(), LayeredMap[bytes, Acl]()
    for batch in changes:
        by_id = {bytes([number]) * 16: acl for number, acl in batch.items()}
        index, known = index.changed(known, by_id), known.changed(by_id)
    return index, dict(known)


@given(batches, st.sampled_from(USERS), st.sampled_from(ASKED), names, st.booleans())
def test_the_index_decides_like_a_look_at_every_rule(
    changes: list[dict[int, Acl | None]], principal: str, operation: Operation, name: str, is_open: bool
) -> None:
    """After any batches of changes, each question gets the answer of the plain definition."""
    index, known = replayed(changes)
    acls = list(known.values())
    assert len(index) == len(acls)
    for each in (index, AclIndex.of(known)):
        authorizer = Authorizer(AuthorizerSettings(allow_everyone=is_open))
        authorizer.apply(each)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP):
            expected = answer(acls, principal, operation, kind, name)
            judged = authorizer.judge(principal, HOST, operation, kind, name)
            assert judged.is_allowed is (expected == "allow" or (expected == "free" and is_open))
            if expected in ("allow", "deny"):
                assert judged.rule in acls
                assert judged.reason is Reason.RULE
                assert is_about(judged.rule, kind, name)
            probed = answer(acls, principal, operation, kind, "hardcode")
            assert authorizer.judge_any(principal, HOST, operation, kind).is_allowed is (
                probed == "allow"
                or (probed == "free" and is_open)
                or may_any(acls, principal, operation, kind)
            )


@given(batches, rules)
def test_an_older_index_stays_as_it_was(changes: list[dict[int, Acl | None]], rule: Acl) -> None:
    """A worker that decides by one index is not disturbed by the next."""
    index, known = replayed(changes)
    question = ("User:alice", HOST, Operation.READ, ResourceType.TOPIC, "ab")
    before = index.find(*question), len(index)
    later = index.changed(known, {**dict.fromkeys(known), b"later": rule})
    assert (index.find(*question), len(index)) == before
    assert len(later) == 1


class CountingRule(Acl):
    """A rule that counts how often its permission is looked at."""

    looked = 0

    def __getattribute__(self, name: str) -> object:
        if name == "permission_type":
            CountingRule.looked += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", ["*", "ab"])
@pytest.mark.parametrize("pattern", [PatternType.LITERAL, PatternType.PREFIXED])
@pytest.mark.parametrize("of_one", ["principal", "host", "operation"])
def test_a_decision_does_not_look_at_the_rules_of_others(
    name: str, pattern: PatternType, of_one: str
) -> None:
    """With 10,000 rules about one resource a decision looks at a handful, and so does one about any resource."""
    acls = {}
    for number in range(MANY):
        principal = f"User:app-{number}" if of_one == "principal" else "User:alice"
        host = f"host-{number}" if of_one == "host" else "*"
        operation = Operation.READ
        resource = name if of_one != "operation" else f"{name}-{number}"
        acls[number.to_bytes(16, "big")] = CountingRule(
            ResourceType.TOPIC, resource, pattern, principal, host, operation, Permission.ALLOW
        )
    index = AclIndex.of(acls)
    CountingRule.looked = 0
    for asked in ("abc", "other", "hardcode"):
        index.find("User:alice", HOST, Operation.WRITE, ResourceType.TOPIC, asked)
    assert index.find_any("User:alice", HOST, Operation.WRITE, ResourceType.TOPIC) is None
    assert CountingRule.looked <= 20


def test_ten_thousand_rules_about_one_resource_come_and_go_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch copies each table once, so that the entries that are copied are as many as the rules."""
    copied = 0
    changed = LayeredMap.changed

    def counting(self: LayeredMap[object, object], changes: dict[object, object]) -> object:
        nonlocal copied
        copied += len(self) + len(changes)
        return changed(self, changes)

    monkeypatch.setattr(LayeredMap, "changed", counting)
    acls = {
        number.to_bytes(16, "big"): Acl(
            ResourceType.TOPIC, "one", 3, f"User:{number}", "*", Operation.READ, Permission.ALLOW
        )
        for number in range(MANY)
    }
    full = AclIndex.of(acls)
    assert len(full) == MANY
    assert copied < 10 * MANY
    copied = 0
    empty = full.changed(acls, dict.fromkeys(acls))
    assert len(empty) == 0
    assert empty.find("User:1", HOST, Operation.READ, ResourceType.TOPIC, "one").has_rules is False
    assert copied < 10 * MANY
