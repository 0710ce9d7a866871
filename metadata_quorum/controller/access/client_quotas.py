"""AlterClientQuotas: set and remove the quotas of clients (KIP-546, KIP-599, KIP-612). PURE.

Each entry of a request names one entity. The entry is accepted or refused as a whole. The order of checks is
Kafka's.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import check_batch
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.metadata_records import ClientQuotaRecord
from odradek.wire.messages.metadata_records import EntityData as RecordEntityData
from odradek.wire.structure import Message

__all__ = ["alter_client_quotas", "check_quotas"]

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_LONG, _INT, _DOUBLE = "LONG", "INT", "DOUBLE"
_KEYS_OF_CLIENTS: Mapping[str, str] = {
    "producer_byte_rate": _LONG,
    "consumer_byte_rate": _LONG,
    "request_percentage": _DOUBLE,
    "controller_mutation_rate": _DOUBLE,
}
_KEYS_OF_ADDRESSES: Mapping[str, str] = {"connection_creation_rate": _INT}
_MAX: Mapping[str, float] = {_LONG: 2.0**63, _INT: 2.0**31 - 1}
_EPSILON = 1e-6
"""The tolerance in the check for whole numbers, as in Kafka. A value that is this close to a whole number is
accepted.
"""

_Entity: TypeAlias = dict[str, str | None]


def alter_client_quotas(
    image: MetadataImage, request: AlterClientQuotasRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Change the quotas of all valid entries. The response has a result for each entity."""
    records: list[Message] = []
    outcomes: dict[tuple[tuple[str, str | None], ...], tuple[_Entity, int, str | None]] = {}
    for entry in request.entries:
        entity = {each.entity_type: each.entity_name for each in entry.entity}
        known = tuple(sorted(entity.items(), key=lambda each: each[0]))
        try:
            keys = [op.key for op in entry.ops]
            if known in outcomes or len(set(keys)) < len(keys):
                raise _invalid(f"Ignoring duplicate entity {_java_text(entity)}")
            check_quotas(entity, entry.ops)
        except KafkaError as error:
            outcomes[known] = (entity, error.code, error.message)
            continue
        outcomes[known] = (entity, ErrorCode.NONE, None)
        records += _changes(image, known, entry.ops)
    check_batch(records)
    answers = [
        AlterClientQuotasResponseEntryData(
            code, text, [EntityData(kind, name) for kind, name in entity.items()]
        )
        for entity, code, text in outcomes.values()
    ]
    return Decision([] if request.validate_only else records, AlterClientQuotasResponse(0, answers))


def _changes(
    image: MetadataImage, entity: tuple[tuple[str, str | None], ...], ops: Iterable[OpData]
) -> list[Message]:
    """Make the records for the changed quotas of one entity. Quotas that already have the new value are left
    out.
    """
    quotas = image.access.client_quotas
    return [
        ClientQuotaRecord(
            [RecordEntityData(kind, name) for kind, name in entity], op.key, op.value, op.remove
        )
        for op in ops
        if quotas.get((entity, op.key)) != (None if op.remove else op.value)
    ]


def check_quotas(entity: Mapping[str, str | None], ops: Iterable[OpData]) -> None:
    """Check an entity and its new quotas. Raises `KafkaError` INVALID_REQUEST."""
    _check_entity(entity)
    _check_ops(entity, ops)


def _check_entity(entity: Mapping[str, str | None]) -> None:
    """Check the types and names of an entity. Raises `KafkaError` INVALID_REQUEST."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (_USER, _CLIENT_ID, _IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if _IP in entity:
        if len(entity) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
            )
        _check_address(entity[_IP])


def _check_address(address: str | None) -> None:
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise _invalid(f"{address} is not a valid IP or resolvable host.") from error


def _check_ops(entity: Mapping[str, str | None], ops: Iterable[OpData]) -> None:
    """Check the new quotas of an entity. Raises `KafkaError` INVALID_REQUEST."""
    keys = _KEYS_OF_ADDRESSES if _IP in entity else _KEYS_OF_CLIENTS
    for op in ops:
        if op.remove:
            continue
        kind = keys.get(op.key)
        if kind is None:
            raise _invalid(f"Invalid configuration key {op.key}")
        if not op.value > 0:
            raise _invalid(f"Quota {op.key} must be greater than 0")
        if kind in _MAX:
            if op.value > _MAX[kind]:
                article = "an INT" if kind == _INT else "a LONG"
                raise _invalid(f"Proposed value for {op.key} is too large for {article}.")
            if abs(op.value - math.floor(op.value + 0.5)) > _EPSILON:
                raise _invalid(f"{op.key} cannot be a fractional value.")


def _java_text(entity: _Entity) -> str:
    """Return the entity as Kafka's error messages print it."""
    named = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity.items())
    return f"ClientQuotaEntity(entries={{{named}}})"


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
