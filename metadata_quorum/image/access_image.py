"""Access rules and limits in the metadata image: ACLs, SCRAM credentials, delegation tokens and client quotas.
PURE.

An authorizer enforces the ACLs, brokers and the controller the quotas; credentials and tokens let their users log
in. All entries are read and kept, so that a directory of Kafka's can be opened, and snapshots stay complete. With
`odradek.start.without.acls` the operator confirms to start without enforcement (`odradek/node/node.py`).

Secrets are left out of the `repr` of these values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.rules import Acl
from odradek.security.salt_forms import NO_USERS, SaltForm, SaltForms, form_of
from odradek.serving.layered_map import LayeredMap
from odradek.wire.messages.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from odradek.wire.structure import Message

__all__ = [
    "ACCESS_RECORDS",
    "AccessChanges",
    "AccessImage",
    "Acl",
    "DelegationToken",
    "QuotaEntity",
    "ScramCredential",
]

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) pairs in the order of the types. The name None stands for the default of that type."""


@attrs.frozen
class ScramCredential:
    """The data from which a server checks a user's password (RFC 5802)."""

    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)
    iterations: int


@attrs.frozen
class DelegationToken:
    """A token without its secret, which follows from the token's id and the cluster's key (KIP-48). Times in milliseconds."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int


@attrs.frozen
class AccessImage:
    """An immutable value, a part of `MetadataImage`."""

    acls: LayeredMap[bytes, Acl] = attrs.field(factory=LayeredMap)
    """ACLs by their ids."""
    acl_ids: LayeredMap[Acl, bytes] = attrs.field(factory=LayeredMap, eq=False)
    """Ids by ACLs, so that an existing ACL is not created again."""
    acl_index: AclIndex = attrs.field(factory=AclIndex, eq=False)
    """The same ACLs, indexed for decisions about clients. The index changes with the image, so do not keep a
    reference to it.
    """
    scram_credentials: LayeredMap[tuple[str, int], ScramCredential] = attrs.field(factory=LayeredMap)
    """Credentials by user and Kafka's number of the mechanism."""
    delegation_tokens: LayeredMap[str, DelegationToken] = attrs.field(factory=LayeredMap)
    """Tokens by their ids."""
    client_quotas: LayeredMap[tuple[QuotaEntity, str], float] = attrs.field(factory=LayeredMap)
    """Quotas by entity and key."""
    salt_forms: SaltForms = attrs.field(default=NO_USERS, eq=False)
    """The forms of the credentials' salts; challenges to unknown users imitate them."""

    def records(self) -> Iterator[Message]:
        """Yield the records that give this image when they are replayed over an empty one. Equal images give equal
        records.
        """
        for entity, key in sorted(self.client_quotas, key=_quota_order):
            value = self.client_quotas[entity, key]
            yield ClientQuotaRecord([EntityData(kind, name) for kind, name in entity], key, value)
        for acl_id in sorted(self.acls):
            yield AccessControlEntryRecord(acl_id, *attrs.astuple(self.acls[acl_id]))
        for user, mechanism in sorted(self.scram_credentials):
            known = self.scram_credentials[user, mechanism]
            yield UserScramCredentialRecord(user, mechanism, *attrs.astuple(known))
        for token_id in sorted(self.delegation_tokens):
            token = self.delegation_tokens[token_id]
            yield DelegationTokenRecord(
                token.owner,
                token.requester,
                list(token.renewers),
                token.issue_timestamp,
                token.max_timestamp,
                token.expiration_timestamp,
                token_id,
            )


def _forms(
    credentials: Iterable[tuple[tuple[str, int], ScramCredential | None]],
) -> Iterator[tuple[int, SaltForm]]:
    for (_, mechanism), known in credentials:
        if known is not None:
            yield mechanism, form_of(known.salt, known.iterations)


def _quota_order(known: tuple[QuotaEntity, str]) -> tuple[list[tuple[str, bool, str]], str]:
    """Return the sort key of a quota: a default comes before the names."""
    entity, key = known
    return [(kind, name is not None, name or "") for kind, name in entity], key


@attrs.define
class AccessChanges:
    """Changes by records since the last image; None is a removal."""

    acls: dict[bytes, Acl | None] = attrs.field(factory=dict)
    scram_credentials: dict[tuple[str, int], ScramCredential | None] = attrs.field(factory=dict)
    delegation_tokens: dict[str, DelegationToken | None] = attrs.field(factory=dict)
    client_quotas: dict[tuple[QuotaEntity, str], float | None] = attrs.field(factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.acls or self.scram_credentials or self.delegation_tokens or self.client_quotas)

    def copy(self) -> AccessChanges:
        return AccessChanges(
            dict(self.acls),
            dict(self.scram_credentials),
            dict(self.delegation_tokens),
            dict(self.client_quotas),
        )

    def applied_to(self, base: AccessImage) -> AccessImage:
        if self.is_empty:
            return base
        return AccessImage(
            base.acls.changed(self.acls),
            base.acl_ids.changed(self._changed_ids(base)) if self.acls else base.acl_ids,
            base.acl_index.changed(base.acls, self.acls) if self.acls else base.acl_index,
            base.scram_credentials.changed(self.scram_credentials),
            base.delegation_tokens.changed(self.delegation_tokens),
            base.client_quotas.changed(self.client_quotas),
            self._changed_forms(base) if self.scram_credentials else base.salt_forms,
        )

    def _changed_forms(self, base: AccessImage) -> SaltForms:
        before = ((user, base.scram_credentials.get(user)) for user in self.scram_credentials)
        return base.salt_forms.changed(_forms(before), _forms(self.scram_credentials.items()))

    def _changed_ids(self, base: AccessImage) -> dict[Acl, bytes | None]:
        changed: dict[Acl, bytes | None] = {}
        for acl_id in self.acls:
            before = base.acls.get(acl_id)
            if before is not None and base.acl_ids.get(before) == acl_id:
                changed[before] = None
        changed.update((acl, acl_id) for acl_id, acl in self.acls.items() if acl is not None)
        return changed

    def replay(self, record: Any) -> None:
        """Apply one of `ACCESS_RECORDS`. A removal may name an unknown entry, as in Kafka."""
        ACCESS_RECORDS[type(record)](self, record)

    def _add_acl(self, record: AccessControlEntryRecord) -> None:
        self.acls[record.id] = Acl(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        self.acls[record.id] = None

    def _set_credential(self, record: UserScramCredentialRecord) -> None:
        self.scram_credentials[record.name, record.mechanism] = ScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )

    def _remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        self.scram_credentials[record.name, record.mechanism] = None

    def _set_token(self, record: DelegationTokenRecord) -> None:
        self.delegation_tokens[record.token_id] = DelegationToken(
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        self.delegation_tokens[record.token_id] = None

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        names = {each.entity_type: each.entity_name for each in record.entity}
        entity = tuple(sorted(names.items(), key=lambda each: each[0]))
        self.client_quotas[entity, record.key] = None if record.remove else record.value


ACCESS_RECORDS: Mapping[type, Callable[[AccessChanges, Any], None]] = {
    AccessControlEntryRecord: AccessChanges._add_acl,
    RemoveAccessControlEntryRecord: AccessChanges._remove_acl,
    UserScramCredentialRecord: AccessChanges._set_credential,
    RemoveUserScramCredentialRecord: AccessChanges._remove_credential,
    DelegationTokenRecord: AccessChanges._set_token,
    RemoveDelegationTokenRecord: AccessChanges._remove_token,
    ClientQuotaRecord: AccessChanges._set_quota,
}
