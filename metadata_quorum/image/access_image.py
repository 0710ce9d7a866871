"""Access rules and limits in the metadata image: ACLs, SCRAM credentials, delegation tokens and client quotas.
PURE.

The authorizer enforces the ACLs. Brokers and the controller enforce the quotas. Users log in with credentials
and tokens. The image keeps all entries in the log, even if this node does not use them. So Odradek can open a
log directory that Apache Kafka wrote, and snapshots are complete. With `odradek.start.without.acls` the
operator allows a start without an authorizer (`odradek/node/node.py`).

The `repr` of these values does not show secrets.
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
"""The entity of a quota: (type, name) pairs, sorted by type. The name None stands for the default of that
type.
"""


@attrs.frozen
class ScramCredential:
    """The data with which a server verifies a user's password (RFC 5802)."""

    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)
    iterations: int


@attrs.frozen
class DelegationToken:
    """A delegation token without its secret, which is computed from the token's id and the cluster's key
    (KIP-48). All times are in milliseconds since 1970.
    """

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int


@attrs.frozen
class AccessImage:
    """The access rules and limits in a `MetadataImage`. It is immutable."""

    acls: LayeredMap[bytes, Acl] = attrs.field(factory=LayeredMap)
    """The ACLs by id."""
    acl_ids: LayeredMap[Acl, bytes] = attrs.field(factory=LayeredMap, eq=False)
    """The id of each ACL. This map shows whether an ACL exists already, so that it is not created again."""
    acl_index: AclIndex = attrs.field(factory=AclIndex, eq=False)
    """An index of the same ACLs for access decisions. Each image has an index of its own, so always take the
    index from the newest image.
    """
    scram_credentials: LayeredMap[tuple[str, int], ScramCredential] = attrs.field(factory=LayeredMap)
    """The credentials by user and Kafka's number of the mechanism."""
    delegation_tokens: LayeredMap[str, DelegationToken] = attrs.field(factory=LayeredMap)
    """The delegation tokens by id."""
    client_quotas: LayeredMap[tuple[QuotaEntity, str], float] = attrs.field(factory=LayeredMap)
    """The values of quotas, by entity and key."""
    salt_forms: SaltForms = attrs.field(default=NO_USERS, eq=False)
    """The form of the salts in the stored credentials. A challenge to an unknown user has a salt of the same
    form.
    """

    def records(self) -> Iterator[Message]:
        """Yield the records that give this value when they are replayed over an empty `AccessImage`.

        Equal values give equal records.
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
    """Return the sort key of a quota. The default of a type comes before the names of that type."""
    entity, key = known
    return [(kind, name is not None, name or "") for kind, name in entity], key


@attrs.define
class AccessChanges:
    """The changes since the last image, from replayed records. A removed entry is None."""

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
        """Apply one record of a type in `ACCESS_RECORDS`.

        As in Kafka, a removal of an unknown entry is allowed.
        """
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
