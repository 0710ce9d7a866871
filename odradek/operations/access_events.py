"""Turns records about users, rights, delegation tokens and quotas into sentences without secrets. PURE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, TypeAlias

from odradek.security.acls.rules import ANY_NAME, Operation, PatternType, Permission, ResourceType
from odradek.wire.messages import metadata_records
from odradek.wire.structure import Message

__all__ = ["AccessNarrator"]

Sentences: TypeAlias = Iterator[tuple[str, str, str]]
"""The sentences about a record, each as (kind of event, subject, rest of the sentence)."""
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class AccessNarrator:
    """Makes events from records about users, rights, tokens and quotas. It remembers all rules (ACLs),
    because the record of a removal names a rule only by its id.
    """

    def __init__(self) -> None:
        self._rules: dict[bytes, tuple[str, str]] = {}
        self._quotas: dict[tuple[str, str], str] = {}
        self.change: tuple[str | None, str | None] = (None, None)
        """The value of a quota before the present record, and after it."""
        self.narrations: Mapping[type[Message], Callable[[Any, int], Sentences]] = {
            metadata_records.UserScramCredentialRecord: self._user_changed,
            metadata_records.RemoveUserScramCredentialRecord: self._user_removed,
            metadata_records.AccessControlEntryRecord: self._rule_added,
            metadata_records.RemoveAccessControlEntryRecord: self._rule_removed,
            metadata_records.DelegationTokenRecord: self._token_changed,
            metadata_records.RemoveDelegationTokenRecord: self._token_removed,
            metadata_records.ClientQuotaRecord: self._quota_changed,
        }

    def _user_changed(self, record: Any, _: int) -> Sentences:
        yield "user", f"user {record.name}", f"has a password for {_mechanism(record)}"

    def _user_removed(self, record: Any, _: int) -> Sentences:
        yield "user", f"user {record.name}", f"has no password for {_mechanism(record)} any longer"

    def _rule_added(self, record: Any, _: int) -> Sentences:
        rule = self._rules[bytes(record.id)] = _rule(record)
        principal, what = rule
        yield "acl", f"principal {principal}", f"now {what}"

    def _rule_removed(self, record: Any, _: int) -> Sentences:
        rule = self._rules.pop(bytes(record.id), None)
        if rule is not None:
            principal, what = rule
            yield "acl", f"principal {principal}", f"has lost the rule: {what}"

    def _token_changed(self, record: Any, _: int) -> Sentences:
        yield "token", f"delegation token {record.token_id}", f"of {record.owner} is valid"

    def _token_removed(self, record: Any, _: int) -> Sentences:
        yield "token", f"delegation token {record.token_id}", "is gone"

    def _quota_changed(self, record: Any, _: int) -> Sentences:
        who = ", ".join(f"{each.entity_type} {each.entity_name or '(default)'}" for each in record.entity)
        value = None if record.remove else f"{record.value:g}"
        self.change = (self._quotas.pop((who, record.key), None), value)
        if value is not None:
            self._quotas[who, record.key] = value
        text = (
            f"has no {record.key} of its own any longer"
            if record.remove
            else f"has {record.key}={record.value:g}"
        )
        yield "quota", who, text


def _mechanism(record: Any) -> str:
    return _MECHANISMS.get(record.mechanism, f"mechanism {record.mechanism}")


def _rule(record: Any) -> tuple[str, str]:
    """Return the principal of an ACL, and the rest of the sentence about the ACL."""
    verb = "may not" if record.permission_type == Permission.DENY else "may"
    kind = _words(ResourceType, record.resource_type).lower().replace("_", " ")
    if record.resource_type == ResourceType.CLUSTER:
        thing = "the cluster"
    elif record.resource_name == ANY_NAME:
        thing = f"every {kind}"
    elif record.pattern_type == PatternType.PREFIXED:
        thing = f"every {kind} whose name begins with {record.resource_name}"
    else:
        thing = f"{kind} {record.resource_name}"
    host = "" if record.host == "*" else f", from {record.host}"
    return record.principal, f"{verb} {_words(Operation, record.operation)} on {thing}{host}"


def _words(kind: type[IntEnum], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return f"{kind.__name__} {number}"
