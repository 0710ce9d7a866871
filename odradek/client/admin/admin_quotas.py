"""Lists, sets and removes client quotas (KIP-546). The functions are operations. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of, item_error, reachable
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["QuotaAlteration", "QuotaEntity", "QuotaMatch", "alter_client_quotas", "describe_client_quotas"]

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""The client that a quota applies to, as (type, name) pairs sorted by type. A type is `user`, `client-id` or
`ip`. The name None means the default of the type.
"""
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


@attrs.frozen
class QuotaMatch:
    """One condition of a filter for quota entities. It matches an entity of this type by its name: the given
    name, the default (`name` None), or any name.
    """

    entity_type: str
    name: str | None = None
    is_any: bool = False
    """True if every name of the type matches."""


@attrs.frozen
class QuotaAlteration:
    """New quota values of an entity, by quota key. The value None removes a quota."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


def describe_client_quotas(
    core: ClientCore, wanted: Sequence[QuotaMatch] = (), *, strict: bool = False, timeout: float | None = None
) -> Operation[dict[QuotaEntity, dict[str, float]]]:
    """List the quotas of the entities that all conditions match. One broker answers, with the quotas that it
    knows.

    With `strict`, an entity is left out if it has a type for which there is no condition. Raises `KafkaError`
    and `ClientError`.
    """
    from odradek.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    components = [
        ComponentData(
            each.entity_type,
            _SPECIFIED if each.is_any else _DEFAULT if each.name is None else _EXACT,
            None if each.is_any else each.name,
        )
        for each in wanted
    ]
    message = DescribeClientQuotasRequest(components, strict)
    response = yield from request(core, message, timeout=deadline - core.now)
    error = item_error(response.error_code, response.error_message, "client quotas")
    if error is not None:
        raise error
    return {
        _entity({each.entity_type: each.entity_name for each in entry.entity}): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


def alter_client_quotas(
    core: ClientCore,
    alterations: Sequence[QuotaAlteration],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Operation[dict[QuotaEntity, KafkaError | None]]:
    """Set and remove quotas; return each entity's error, or None on success. Raises `ClientError`."""
    from odradek.wire.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasRequestEntryData,
        EntityData,
        OpData,
    )

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    entries = [
        AlterClientQuotasRequestEntryData(
            [EntityData(kind, name) for kind, name in each.entity],
            [
                OpData(key, 0.0 if value is None else value, value is None)
                for key, value in each.values.items()
            ],
        )
        for each in alterations
    ]
    message = AlterClientQuotasRequest(entries, validate_only)
    response = yield from request(core, message, timeout=deadline - core.now)
    outcomes = {}
    for entry in response.entries:
        entity = _entity({each.entity_type: each.entity_name for each in entry.entity})
        named = ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)
        outcomes[entity] = item_error(entry.error_code, entry.error_message, f"quotas of {named}")
    return outcomes


def _entity(names: Mapping[str, str | None]) -> QuotaEntity:
    return tuple((kind, names[kind]) for kind in sorted(names))
