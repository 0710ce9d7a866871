"""The authorizer: Kafka's StandardAuthorizer (KIP-801), the reason of each decision, and the decisions that a
connection remembers. PURE.

Theory of operation
-------------------
One `Authorizer` per node has the index of ACLs of the newest image. A question goes through these steps:

1. A super user may do everything.
2. Before the first image (`apply`), nobody else may do anything. The rules must be known first.
3. If a rule denies, the client may not; otherwise, if a rule allows, the client may.
4. Otherwise the client may not. But a resource without any rule follows `allow.everyone.if.no.acl.found`.

`Rights` belong to one connection. They remember up to `REMEMBERED_MAX` decisions, until `generation` grows with the
next change of an ACL. So the hot path costs one lookup in a dict.

A refusal is recorded for the audit log. `would_allow` makes no record, like a check in Kafka with
`logIfDenied` false. It serves questions such as which topics to list, or whether the client has a stronger
right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

import attrs

from odradek.security.acls.acl_index import PROBE_NAME, AclIndex, clients_of
from odradek.security.acls.rules import Acl, Permission

__all__ = [
    "REMEMBERED_MAX",
    "Authorizer",
    "AuthorizerSettings",
    "Denial",
    "DenialObserver",
    "Judgement",
    "Reason",
    "Rights",
    "parse_principals",
]

REMEMBERED_MAX = 1_000
DENIALS_MAX = 20
"""The number of refusals of one request that are recorded one by one; further refusals are only counted."""
_Question: TypeAlias = tuple[int, int, str | None]


@attrs.frozen
class AuthorizerSettings:
    """The keys `super.users` and `allow.everyone.if.no.acl.found`."""

    super_users: frozenset[str] = frozenset()
    """Principals with all rights, as `type:name`."""
    allow_everyone: bool = False


def parse_principals(text: str) -> frozenset[str]:
    """Parse `super.users`: `type:name`, separated by semicolons. Raises `ValueError`."""
    found = set()
    for each in text.split(";"):
        principal = each.strip()
        if principal:
            kind, colon, name = principal.partition(":")
            if not (kind and colon and name):
                raise ValueError(
                    f"expected a string in format principalType:principalName but got {principal}"
                )
            found.add(principal)
    return frozenset(found)


class Reason(Enum):
    """The step that led to a decision; the docstring of this module lists the steps."""

    SUPER_USER = "super user"
    NOT_READY = "this broker has not read the ACLs yet"
    RULE = "rule"
    NO_RULE = "no rule"
    DEFAULT = "allow.everyone.if.no.acl.found"


@attrs.frozen
class Judgement:
    """A decision, and its reason: the step, and the rule if one decided."""

    is_allowed: bool
    reason: Reason
    rule: Acl | None = None


class Authorizer:
    """Decides by the ACLs of a node. `generation` grows with each change of the ACLs."""

    def __init__(self, settings: AuthorizerSettings) -> None:
        self.settings = settings
        self.generation = 0
        self.auditor: DenialObserver | None = None
        """The receiver of refusals (`odradek.security.audit.auditor`)."""
        self._index: AclIndex | None = None
        self._judged = 0
        self._denied = 0

    def apply(self, index: AclIndex) -> None:
        """Use the ACLs of a newer image from now on."""
        self._index = index
        self.generation += 1

    def judge(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Judgement:
        """Decide whether a client may perform the operation on one resource. `host` is the client's address
        as text.
        """
        self._judged += 1
        judgement = self._judge(principal, host, operation, resource_type, name)
        self._denied += not judgement.is_allowed
        return judgement

    def allows(
        self, clients: tuple[tuple[str, str], ...], operation: int, resource_type: int, name: str
    ) -> bool:
        """Decide as `judge` does, but return only the decision. `clients` comes from `clients_of`."""
        self._judged += 1
        index = self._index
        if clients[0][0] in self.settings.super_users:
            return True
        if index is not None:
            rule, has_rules = index.look_up(clients, operation, resource_type, name)
            if rule is None:
                is_allowed = self.settings.allow_everyone and not has_rules
            else:
                is_allowed = rule.permission_type != Permission.DENY
            if is_allowed:
                return True
        self._denied += 1
        return False

    def why(self, principal: str, host: str, denial: Denial) -> Judgement:
        """Find the reason of an earlier refusal, without counting the decision again."""
        judgement = self._judge(
            principal, host, denial.operation, denial.resource_type, denial.name or PROBE_NAME
        )
        return judgement if denial.name is not None else attrs.evolve(judgement, rule=None)

    def _judge(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Judgement:
        if principal in self.settings.super_users:
            return Judgement(True, Reason.SUPER_USER)
        if self._index is None:
            return Judgement(False, Reason.NOT_READY)
        found = self._index.find(principal, host, operation, resource_type, name)
        if found.rule is not None:
            return Judgement(found.rule.permission_type != Permission.DENY, Reason.RULE, found.rule)
        if found.has_rules or not self.settings.allow_everyone:
            return Judgement(False, Reason.NO_RULE)
        return Judgement(True, Reason.DEFAULT)

    def judge_any(self, principal: str, host: str, operation: int, resource_type: int) -> Judgement:
        """Decide whether the client may perform the operation on at least one resource of a type (KIP-679)."""
        probed = self.judge(principal, host, operation, resource_type, PROBE_NAME)
        if probed.is_allowed or self._index is None:
            return probed
        rule = self._index.find_any(principal, host, operation, resource_type)
        return Judgement(False, Reason.NO_RULE) if rule is None else Judgement(True, Reason.RULE, rule)

    def statistics(self) -> dict[str, int]:
        """Count the rules now, and decisions and denials since the start; decisions that connections had remembered
        are not counted.
        """
        index = self._index
        return {
            "acls": 0 if index is None else len(index),
            "judged": self._judged,
            "denied": self._denied,
            "generation": self.generation,
        }


class Denial(NamedTuple):
    """A refusal: the operation and the type of the resource by Kafka's numbers. The name is None if the client needed
    the right on at least one resource of the type.
    """

    operation: int
    resource_type: int
    name: str | None


class DenialObserver(Protocol):
    """The receiver of refusals, such as the audit log."""

    def denied(self, rights: Rights, api_key: int, denials: Sequence[Denial], further: int) -> None:
        """Called when a request of the API `api_key` was refused some rights. `denials` are the recorded
        refusals, and `further` is the number of refusals that were not recorded.
        """


class Rights:
    """The rights of one client, with the decisions that its connection remembers."""

    __slots__ = (
        "_authorizer",
        "_clients",
        "_denials",
        "_further",
        "_generation",
        "_known",
        "_remembered_max",
        "host",
        "listener",
        "principal",
    )

    def __init__(
        self,
        authorizer: Authorizer,
        principal: str,
        host: str,
        remembered_max: int = REMEMBERED_MAX,
        listener: str = "",
    ) -> None:
        self.principal = principal
        self.host = host
        self.listener = listener
        self._denials: dict[Denial, None] | None = None
        self._further = 0
        self._authorizer = authorizer
        self._clients = clients_of(principal, host)
        self._generation = authorizer.generation
        self._known: dict[_Question, bool] = {}
        self._remembered_max = remembered_max

    def remembered(self) -> Mapping[tuple[int, int, str | None], bool]:
        """Return the remembered decisions that are still valid, by operation, resource type and name. Use them only
        within one request.
        """
        if self._generation != self._authorizer.generation:
            self._known.clear()
            self._generation = self._authorizer.generation
        return self._known

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        """True if the client may perform the operation on the resource. A refusal is recorded for the audit
        log.
        """
        if self._generation == self._authorizer.generation and self._known.get(
            (operation, resource_type, name)
        ):
            return True
        return self.would_allow(operation, resource_type, name) or self._put_down(
            operation, resource_type, name
        )

    def would_allow(self, operation: int, resource_type: int, name: str) -> bool:
        """True if the client may perform the operation on the resource. Unlike `allows`, it records no
        refusals for the audit log.
        """
        if self._generation == self._authorizer.generation:
            known = self._known.get((operation, resource_type, name))
            if known is not None:
                return known
        return self._remember(
            (operation, resource_type, name),
            self._authorizer.allows(self._clients, operation, resource_type, name),
        )

    def allows_any(self, operation: int, resource_type: int) -> bool:
        """True if the client may perform the operation on at least one resource of the type. A refusal is
        recorded for the audit log.
        """
        known: bool | None = None
        if self._generation == self._authorizer.generation:
            known = self._known.get((operation, resource_type, None))
        if known is None:
            known = self._remember(
                (operation, resource_type, None),
                self._authorizer.judge_any(self.principal, self.host, operation, resource_type).is_allowed,
            )
        return known or self._put_down(operation, resource_type, None)

    def _put_down(self, operation: int, resource_type: int, name: str | None) -> bool:
        """Record a refusal for the audit log. Always return False, which is the decision."""
        if self._authorizer.auditor is not None:
            if self._denials is None:
                self._denials = {}
            if len(self._denials) < DENIALS_MAX:
                self._denials[Denial(operation, resource_type, name)] = None
            else:
                self._further += 1
        return False

    def log_denials(self, api_key: int) -> None:
        """Report the recorded refusals of a request to the audit log. Only the event loop may call this."""
        denials, self._denials = self._denials, None
        further, self._further = self._further, 0
        if denials and self._authorizer.auditor is not None:
            self._authorizer.auditor.denied(self, api_key, tuple(denials), further)

    @property
    def generation(self) -> int:
        """The number of the present version of the ACLs."""
        return self._authorizer.generation

    def why(self, denial: Denial) -> Judgement:
        """Find the reason of a recorded refusal."""
        return self._authorizer.why(self.principal, self.host, denial)

    def for_many(self) -> Rights:
        """Make a copy that remembers all decisions, without a limit. It serves one request that names more
        resources than a connection remembers.
        """
        return Rights(self._authorizer, self.principal, self.host, 1_000_000, self.listener)

    def _remember(self, question: _Question, is_allowed: bool) -> bool:
        if self._generation != self._authorizer.generation:
            self._known.clear()
            self._generation = self._authorizer.generation
        elif len(self._known) >= self._remembered_max:
            # Forget only the oldest answer, so that a client which repeats a cycle of questions still finds
            # most answers.
            del self._known[next(iter(self._known))]
        self._known[question] = is_allowed
        return is_allowed
