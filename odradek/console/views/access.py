"""The views of rights: rules, users, quotas, and whether a user may do something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs

from odradek.cli.access.access_words import DEFAULT, principal_of
from odradek.cli.access.judging import acl_document, authorizer_of
from odradek.client.admin import ConfigResource, ResourceType
from odradek.client.errors import ClientError
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.security.acls.acl_requests import AclFilter
from odradek.security.acls.authorizer import Judgement, Reason, parse_principals
from odradek.security.acls.rules import CLUSTER_NAME, Acl, Operation, check_supported, operation_named
from odradek.security.acls.rules import ResourceType as AclResource
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["Access", "AccessQuery", "Check", "CheckQuery", "access", "access_check"]

T = TypeVar("T")

ROWS_PER_PAGE = 500
_SECONDS = 3.0
_KEYS = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
_RESOURCE = r"^(cluster|(topic|group|transactional-id|delegation-token|user):[^\u0000-\u001f\u007f]+)$"
_OPERATIONS = tuple(each.name.lower().replace("_", "-") for each in Operation if each > Operation.ANY)


@attrs.frozen(kw_only=True)
class AccessQuery:
    """Which rules to list."""

    search: str = attrs.field(
        default="", metadata=about("a part of a principal, a user or the name of a resource", maximum=1024)
    )
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class Rule:
    """A rule that allows or denies an operation (an ACL)."""

    principal: str = attrs.field(metadata=about("the principal, such as User:ann"))
    permission: str = attrs.field(metadata=about("allow or deny", choices=("allow", "deny")))
    operation: str = attrs.field(metadata=about("the operation"))
    resource_type: str = attrs.field(metadata=about("the type of the resource"))
    resource_name: str = attrs.field(metadata=about("its name, or the beginning of its name"))
    pattern_type: str = attrs.field(metadata=about("literal or prefixed", choices=("literal", "prefixed")))
    host: str = attrs.field(metadata=about("the client's address; * for any"))


@attrs.frozen(kw_only=True)
class Credential:
    """A password of a user."""

    mechanism: str = attrs.field(metadata=about("the SASL mechanism"))
    iterations: int = attrs.field(metadata=about("the iterations of its hash"))


@attrs.frozen(kw_only=True)
class User:
    """A user with passwords in the cluster (SCRAM)."""

    name: str = attrs.field(metadata=about("the name"))
    credentials: Sequence[Credential] = attrs.field(metadata=about("the passwords"))


@attrs.frozen(kw_only=True)
class QuotaRow:
    """A quota."""

    user: str | None = attrs.field(
        metadata=about(f"the user; {DEFAULT} for those without a quota of their own")
    )
    client_id: str | None = attrs.field(metadata=about("the client id, or the default"))
    ip: str | None = attrs.field(metadata=about("the address, or the default"))
    key: str = attrs.field(metadata=about("the quota, as Kafka names it"))
    value: float | None = attrs.field(metadata=about("the value; null for no limit"))


@attrs.frozen(kw_only=True)
class Access:
    """The rules of a page, and all users and quotas."""

    has_authorizer: bool | None = attrs.field(metadata=about("false if everybody may do everything"))
    super_users: Sequence[str] | None = attrs.field(metadata=about("principals that may do everything"))
    allow_everyone: bool | None = attrs.field(
        metadata=about("true if a resource without a rule is open to all")
    )
    total: int | None = attrs.field(
        metadata=about("the number of rules that fit; null if they are not known")
    )
    page: int = attrs.field(metadata=about("the page of rules"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    rules: Sequence[Rule] = attrs.field(metadata=about(f"the rules of this page, at most {ROWS_PER_PAGE}"))
    users: Sequence[User] | None = attrs.field(
        metadata=about(f"users, at most {ROWS_PER_PAGE}; null: not known")
    )
    user_count: int | None = attrs.field(metadata=about("the number of users that fit"))
    quotas: Sequence[QuotaRow] | None = attrs.field(
        metadata=about(f"quotas, at most {ROWS_PER_PAGE}; null: not known")
    )
    quota_count: int | None = attrs.field(metadata=about("the number of quotas that fit"))
    errors: Sequence[str] = attrs.field(metadata=about("why something is not known"))


def access(session: Session, query: AccessQuery) -> Access:
    """List the rules, the users and the quotas of the cluster, as far as the user may see them."""
    errors: list[str] = []
    settings = session.cache.value("authorizer", 30.0, lambda: _settings(session))
    acls: Sequence[Acl] | None = ()
    if settings is None or settings.has_authorizer:
        acls = _asked(
            "rules", errors, lambda: session.client.describe_acls(AclFilter(1, None, 1, None, None, 1, 1))
        )
    wanted = query.search.lower()
    rules = [Rule(**acl_document(each)) for each in acls or ()]
    rules = [each for each in rules if wanted in f"{each.principal}\n{each.resource_name}".lower()]
    rules.sort(key=lambda each: (each.principal, each.resource_type, each.resource_name, each.operation))
    page = page_of(rules, query.page, ROWS_PER_PAGE)
    users = _asked("users", errors, lambda: _users(session, wanted))
    quotas = _asked("quotas", errors, lambda: _quotas(session, wanted))
    return Access(
        has_authorizer=None if settings is None else settings.has_authorizer,
        super_users=None
        if settings is None or settings.super_users is None
        else sorted(settings.super_users),
        allow_everyone=None if settings is None else settings.allow_everyone,
        total=None if acls is None else page.total,
        page=page.page,
        pages=page.pages,
        rules=page.rows,
        users=None if users is None else users[:ROWS_PER_PAGE],
        user_count=None if users is None else len(users),
        quotas=None if quotas is None else quotas[:ROWS_PER_PAGE],
        quota_count=None if quotas is None else len(quotas),
        errors=errors,
    )


def _asked(what: str, errors: list[str], ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (KafkaError, ClientError) as error:
        if isinstance(error, KafkaError) and error.code is ErrorCode.SECURITY_DISABLED:
            errors.append("the cluster has no authorizer, so everybody may do everything")
        else:
            errors.append(f"the {what} are not known: {error}")
        return None


def _users(session: Session, wanted: str) -> list[User]:
    found = session.client.describe_user_scram_credentials(None, timeout=_SECONDS)
    return [
        User(
            name=name,
            credentials=[
                Credential(mechanism=mechanism, iterations=iterations)
                for mechanism, iterations in sorted(credentials.items())
            ],
        )
        for name, credentials in sorted(found.items())
        if wanted in name.lower() and isinstance(credentials, Mapping)
    ]


def _quotas(session: Session, wanted: str) -> list[QuotaRow]:
    rows = []
    for entity, values in session.client.describe_client_quotas(timeout=_SECONDS).items():
        names = {kind: DEFAULT if name is None else name for kind, name in entity}
        if wanted in "\n".join(names.values()).lower():
            rows += [
                QuotaRow(
                    user=names.get("user"),
                    client_id=names.get("client-id"),
                    ip=names.get("ip"),
                    key=key,
                    value=value,
                )
                for key, value in sorted(values.items())
            ]
    return sorted(rows, key=lambda row: (row.user or "", row.client_id or "", row.ip or "", row.key))


@attrs.frozen
class _Settings:
    """The keys of the authorizer. Kafka hides all but the first from everybody: then they are None."""

    has_authorizer: bool
    super_users: frozenset[str] | None = None
    allow_everyone: bool | None = None


def _settings(session: Session) -> _Settings | None:
    """Read the keys of the authorizer from a broker; None if the user may not see them."""
    try:
        brokers = session.client.describe_cluster(timeout=_SECONDS).brokers
        resources = [ConfigResource(ResourceType.BROKER, str(each.node_id)) for each in brokers]
        described = session.client.describe_configs(resources, _KEYS, timeout=_SECONDS) if resources else ()
    except (KafkaError, ClientError):
        return None
    for each in described:
        values = {entry.name: entry.value for entry in each.entries if entry.value is not None}
        if each.error is None and "authorizer.class.name" in values:
            everyone = values.get("allow.everyone.if.no.acl.found")
            return _Settings(
                bool(values["authorizer.class.name"]),
                _principals(values.get("super.users")),
                None if everyone is None else everyone.lower() == "true",
            )
    return None


def _principals(text: str | None) -> frozenset[str] | None:
    try:
        return None if text is None else parse_principals(text)
    except ValueError:
        return None


@attrs.frozen(kw_only=True)
class CheckQuery:
    """A question: may a principal do something?"""

    principal: str = attrs.field(
        metadata=about("the user, or TYPE:NAME", maximum=1024, pattern=r"^[^\u0000-\u001f\u007f]+$")
    )
    operation: str = attrs.field(metadata=about("the operation", choices=_OPERATIONS))
    resource: str = attrs.field(
        metadata=about(
            "TYPE:NAME with topic, group, transactional-id, delegation-token or user; or cluster",
            maximum=1024,
            pattern=_RESOURCE,
        )
    )
    host: str = attrs.field(default="*", metadata=about("the client's address", maximum=64))


@attrs.frozen(kw_only=True)
class Check:
    """The answer, with its reason."""

    allowed: bool = attrs.field(metadata=about("true if the principal may"))
    why: str = attrs.field(metadata=about("the reason in a sentence"))
    rule: Rule | None = attrs.field(metadata=about("the rule that decides"))
    is_certain: bool = attrs.field(
        metadata=about("false if the brokers' super users and defaults are not known to the user who looks")
    )


def access_check(session: Session, query: CheckQuery) -> Check:
    """Say whether a principal may do something, and which rule decides."""
    kind_text, _, name = query.resource.partition(":")
    kind = AclResource[kind_text.upper().replace("-", "_")]
    if kind is AclResource.CLUSTER:
        name = CLUSTER_NAME
    operation = operation_named(query.operation)
    try:
        check_supported(kind, operation)
    except ValueError as error:
        return Check(allowed=False, why=str(error), rule=None, is_certain=True)
    settings = session.cache.value("authorizer", 30.0, lambda: _settings(session))
    if settings is not None and not settings.has_authorizer:
        return Check(
            allowed=True,
            why="the cluster has no authorizer: everybody may do everything",
            rule=None,
            is_certain=True,
        )
    principal = principal_of(query.principal)
    known = settings or _Settings(True)
    authorizer = authorizer_of(session.asker, known.super_users or frozenset(), known.allow_everyone or False)
    judged = authorizer.judge(principal, query.host, int(operation), int(kind), name)
    rule = None if judged.rule is None else Rule(**acl_document(judged.rule))
    is_known = known.super_users is not None and known.allow_everyone is not None
    # Keys that are not known can only allow more.
    return Check(
        allowed=judged.is_allowed,
        why=_why(principal, judged),
        rule=rule,
        is_certain=is_known or judged.is_allowed,
    )


def _why(principal: str, judged: Judgement) -> str:
    match judged.reason:
        case Reason.SUPER_USER:
            return f"{principal} is a super user (super.users)"
        case Reason.RULE:
            return f"the rule decides: {judged.rule}"
        case Reason.NO_RULE:
            return "no rule allows it"
        case Reason.DEFAULT:
            return "the resource has no rule, and allow.everyone.if.no.acl.found is true"
        case _:
            return str(judged.reason.value)
