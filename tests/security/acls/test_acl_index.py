"""The index of ACLs decides as a scan of all ACLs does, after any changes (KIP-290, KIP-679, KIP-801)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.image.access_image import AccessImage
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.security.acls import acl_index
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.acl_requests import AclFilter
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings, Reason, Rights
from odradek.security.acls.rules import Acl, Operation, PatternType, Permission, ResourceType
from odradek.serving.layered_map import LayeredMap
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsMatchingAcl, DeleteAclsRequest

HOST = "10.0.0.1"
USERS = ("User:alice", "User:bob", "User:*", "Role:alice")
OPERATIONS = (Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
ASKED = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALL)
IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
MANY = 10_000

WITH_AUTHORIZER = attrs.evolve(ControllerSettings(), has_authorizer=True)

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


def context() -> DecisionContext:
    """Make the context of a decision. Ids of ACLs are random."""
    random = Random(1)
    return DecisionContext(0, 3, 0, 1, random, lambda: random.randbytes(16))


def told(acl: DeleteAclsMatchingAcl) -> Acl:
    """Return the ACL in an answer."""
    return Acl(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def is_about(acl: Acl, kind: int, name: str) -> bool:
    """True if an ACL is about this resource."""
    if acl.resource_type != kind:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")


def is_for(acl: Acl, principal: str, host: str) -> bool:
    """True if an ACL is for this client."""
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def answer(acls: Iterable[Acl], principal: str, operation: Operation, kind: int, name: str) -> str:
    """Decide by a scan of all ACLs: denied, allowed, only others' ACLs (`none`), or no ACL about it (`free`)."""
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
    """True if some resource is allowed and no denial covers it."""
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
    """Return the index after these batches of changes, and the remaining ACLs."""
    index, known = AclIndex(), LayeredMap[bytes, Acl]()
    for batch in changes:
        by_id = {bytes([number]) * 16: acl for number, acl in batch.items()}
        index, known = index.changed(known, by_id), known.changed(by_id)
    return index, dict(known)


@given(batches, st.sampled_from(USERS), st.sampled_from(ASKED), names, st.booleans())
def test_the_index_decides_like_a_look_at_every_rule(
    changes: list[dict[int, Acl | None]], principal: str, operation: Operation, name: str, is_open: bool
) -> None:
    """After any batches of changes, the index answers each question as a scan of all ACLs does."""
    index, known = replayed(changes)
    acls = list(known.values())
    assert len(index) == len(acls)
    for each in (index, AclIndex.of(known)):
        authorizer = Authorizer(AuthorizerSettings(allow_everyone=is_open))
        authorizer.apply(each)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP):
            expected = answer(acls, principal, operation, kind, name)
            judged = authorizer.judge(principal, HOST, operation, kind, name)
            assert Rights(authorizer, principal, HOST).allows(operation, kind, name) is judged.is_allowed
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
    """A change of the index makes a new one. The old index still answers as before, for a worker that uses it."""
    index, known = replayed(changes)
    question = ("User:alice", HOST, Operation.READ, ResourceType.TOPIC, "ab")
    before = index.find(*question), len(index)
    later = index.changed(known, {**dict.fromkeys(known), b"later": rule})
    assert (index.find(*question), len(index)) == before
    assert len(later) == 1


filters = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    st.one_of(st.none(), names, st.just("*")),
    st.sampled_from([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
    st.one_of(st.none(), st.sampled_from(USERS)),
    st.one_of(st.none(), st.just("*")),
    st.sampled_from([Operation.ANY, Operation.READ]),
    st.sampled_from([Permission.ANY, Permission.DENY]),
)


def is_meant(asked: AclFilter, acl: Acl) -> bool:
    """True if a filter matches an ACL, part by part (KIP-290)."""
    name = asked.resource_name
    if asked.pattern_type == PatternType.MATCH and name is not None:
        is_named = is_about(acl, acl.resource_type, name)
    else:
        is_any_pattern = asked.pattern_type in (PatternType.ANY, PatternType.MATCH)
        is_named = name in (None, acl.resource_name) and (
            is_any_pattern or asked.pattern_type == acl.pattern_type
        )
    return (
        is_named
        and asked.resource_type in (ResourceType.ANY, acl.resource_type)
        and asked.principal in (None, acl.principal)
        and asked.host in (None, acl.host)
        and asked.operation in (Operation.ANY, acl.operation)
        and asked.permission_type in (Permission.ANY, acl.permission_type)
    )


@given(batches, st.lists(filters, max_size=3))
def test_a_deletion_finds_what_its_filters_mean(
    changes: list[dict[int, Acl | None]], asked: list[AclFilter]
) -> None:
    """A deletion returns each ACL with the first filter that matches it, even if the log has the ACL twice."""
    _, known = replayed(changes)
    acls: LayeredMap[bytes, Acl] = LayeredMap(known)
    ids: LayeredMap[Acl, bytes] = LayeredMap({acl: acl_id for acl_id, acl in known.items()})
    image = MetadataImage(access=AccessImage(acls, ids, AclIndex.of(known)))
    request = DeleteAclsRequest([DeleteAclsFilter(*attrs.astuple(each)) for each in asked])
    decision = Controller(WITH_AUTHORIZER).decide(image, request, context())
    left, gone = dict(sorted(known.items())), list[bytes]()
    for each, result in zip(asked, decision.response.filter_results, strict=True):
        meant = [acl_id for acl_id, acl in left.items() if is_meant(each, acl)]
        assert [told(acl) for acl in result.matching_acls] == [left.pop(acl_id) for acl_id in meant]
        gone += meant
    assert [record.id for record in decision.records] == gone


def test_thousands_of_filters_by_name_are_no_work_for_all_rules() -> None:
    """A request deletes the ACLs of 2,000 topics by name. It is accepted however many other ACLs there are."""
    builder = ImageBuilder(MetadataImage.empty("c"))
    request = CreateAclsRequest(
        [AclCreation(2, f"t{number}", 3, "User:a", "*", 3, 3) for number in range(MANY)]
    )
    controller = Controller(WITH_AUTHORIZER)
    for offset, record in enumerate(controller.decide(MetadataImage.empty("c"), request, context()).records):
        builder.replay(offset, record, 1)
    image, _ = builder.build()
    asked = [DeleteAclsFilter(2, f"t{number}", 3, None, None, 1, 1) for number in range(2_000)]
    decision = controller.decide(image, DeleteAclsRequest(asked), context())
    assert {len(each.matching_acls) for each in decision.response.filter_results} == {1}
    assert len(decision.records) == len(asked)


class CountingRule(Acl):
    """An ACL that counts the reads of its permission."""

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
    """There are 10,000 ACLs about one resource.

    A decision about it, or about any resource, reads only a few of them.
    """
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
    """A batch of 10,000 changes about one resource copies each table once, so the work grows linearly."""
    copied = 0

    class CountingDict(dict[object, object]):
        def __init__(self, items: Mapping[object, object] = {}) -> None:
            nonlocal copied
            copied += len(items)
            super().__init__(items)

    monkeypatch.setattr(acl_index, "dict", CountingDict, raising=False)
    acls = {
        number.to_bytes(16, "big"): Acl(
            ResourceType.TOPIC, "one", 3, f"User:{number}", "*", Operation.READ, Permission.ALLOW
        )
        for number in range(MANY)
    }
    full = AclIndex.of(acls)
    assert len(full) == MANY
    copied = 0
    empty = full.changed(acls, dict.fromkeys(acls))
    assert len(empty) == 0
    assert empty.find("User:1", HOST, Operation.READ, ResourceType.TOPIC, "one").has_rules is False
    assert MANY <= copied <= 3 * MANY
